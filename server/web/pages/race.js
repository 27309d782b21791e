/** The Race tab: one prompt and seed, plain and then drafted, with clocks and a comparison of the two replies.
 *
 * Invariant: both runs ask for the same trace, and each has a new session, in which nothing has been learnt.
 */

import { activity } from "../api/activity.js";
import { forget } from "../api/client.js";
import { Generation } from "../api/generation.js";
import { freshId } from "../api/identifier.js";
import { Inspector } from "../drafting/inspector.js";
import { Legend } from "../drafting/legend.js";
import { announce } from "../elements/announcer.js";
import { element, part } from "../elements/element.js";
import { Notices } from "../elements/notices.js";
import { RunButton } from "../elements/run_button.js";
import { Lane } from "./lane.js";
import { RaceChart } from "./race_chart.js";
import { RacePrompt } from "./race_prompt.js";
import { replay } from "./replay.js";
import { verdict } from "./verdict.js";

const TICK = 60; // milliseconds: a clock people can follow, and little of the processor the engine runs on
const RUNNING = [
  { headline: "First plain …", details: "The model writes one token in every forward.", state: "running" },
  { headline: "… then drafted", details: "In every forward the model checks a tree of drafted tokens.", state: "running" },
];

export class RaceView {
  #replaying = null;

  constructor(root, engine, settings) {
    Object.assign(this, { engine, settings });
    const form = part(root, "form");
    this.verdict = part(root, "verdict");
    this.button = new RunButton(part(root, "run"), this, engine);
    this.legend = new Legend(part(root, "legend"), root);
    this.inspector = new Inspector(part(root, "inspector"), root);
    this.notices = new Notices(part(root, "notices"), () => settings.askForKey());
    this.chart = new RaceChart(part(root, "chart"));
    this.lanes = [new Lane("Plain"), new Lane("Drafted")];
    part(root, "lanes").append(...this.lanes.map((lane) => lane.root));
    this.lanes.forEach((lane, index) => {
      lane.text.addEventListener("scroll", () => this.#scrollTogether(lane, this.lanes[1 - index]), { passive: true });
    });
    this.prompt = new RacePrompt(form, engine, this.notices);
    form.addEventListener("submit", (event) => {
      event.preventDefault();
      if (this.button.canStart) this.#start();
    });
  }

  /** Once both have ended, both lanes show the same place. */
  #scrollTogether(lane, other) {
    const haveEnded = this.lanes.every(({ root }) => root.dataset.state === "done");
    if (haveEnded) other.text.scrollTop = lane.text.scrollTop;
  }

  shown() {
    this.prompt.box.grow();
  }

  async #start() {
    this.#replaying?.abort();
    this.notices.clear();
    try {
      const wasStopped = await activity.run(this, (signal) => this.#race(signal));
      if (wasStopped) this.#breakOff("stopped");
    } catch (error) {
      this.#breakOff("failed");
      this.notices.tell(error, () => this.#start());
    }
  }

  async #race(signal) {
    const asked = this.prompt.question(this.settings.value);
    const generations = [new Generation(), new Generation()];
    const sessions = generations.map(() => freshId("race"));
    const methods = ["none", asked.settings.method === "none" ? "auto" : asked.settings.method];
    const finish = () => generations[0].trace.tokens.length || asked.settings.maxTokens;
    this.lanes.forEach((lane, index) => {
      const limit = index ? finish : () => asked.settings.maxTokens;
      lane.follow(generations[index], { method: methods[index], state: "waiting", finish: limit });
    });
    this.legend.show(generations[1].trace);
    this.inspector.follow(generations[1], [this.lanes[1].text]);
    await this.engine.prepare(methods[1], signal, (details, share) => this.#showWait(details, share));
    if (asked.hasPictures) await this.#lookAt(asked, signal);
    try {
      for (const index of [0, 1]) {
        this.#showVerdict(RUNNING[index]);
        const body = { ...asked.body(methods[index]), session_id: sessions[index] };
        await this.#run(index, generations, asked.kind, body, signal);
      }
    } finally {
      forget(sessions).catch(() => {}); // where this fails, they expire by themselves
    }
    this.#conclude(generations);
  }

  /** Have the model look at the pictures before both runs: the second would find what the first has seen. */
  async #lookAt(asked, signal) {
    this.#showWait("The model looks at what is shown, once for both runs.", null);
    await new Generation().run(asked.kind, { ...asked.body("none"), max_tokens: 1 }, { signal });
  }

  /** What the race waits for: without it, both runs would be plain, or one of them would load the model. */
  #showWait(details, share) {
    const bar = element("progress", { max: 1, value: share, "aria-label": "How far what is awaited has come" });
    this.#showVerdict({ headline: "Waiting to start", details, state: "waiting" }, bar);
  }

  #breakOff(state) {
    for (const lane of this.lanes) if (lane.root.dataset.state === "running") lane.say(state);
    this.verdict.hidden = state === "failed";
    if (state === "stopped") this.#showVerdict({ headline: "Stopped", details: "A race counts when both have ended.", state });
  }

  async #run(index, generations, kind, body, signal) {
    const [lane, generation] = [this.lanes[index], generations[index]];
    lane.say("running");
    const started = performance.now();
    const ticking = setInterval(() => {
      lane.show(performance.now() - started, generation.trace.tokens.length);
      this.#follow(generations, index);
    }, TICK);
    try {
      await generation.run(kind, body, { signal });
    } finally {
      clearInterval(ticking);
    }
    lane.show(generation.milliseconds, generation.trace.tokens.length);
    lane.finish = () => generation.trace.tokens.length || 1;
    lane.show(generation.milliseconds, generation.trace.tokens.length);
    lane.say("done");
    this.#follow(generations, index);
  }

  #follow(generations, index) {
    this.chart.show(generations.map(({ arrivals }) => arrivals));
    if (!index) return;
    this.inspector.update();
    this.legend.show(generations[1].trace);
  }

  #conclude(generations) {
    const [plain, drafted] = generations;
    const found = verdict(plain, drafted);
    const again = element("button", { type: "button" }, "Replay");
    again.addEventListener("click", () => this.#replay(generations, again));
    this.#showVerdict({ ...found, state: found.isSame ? "same" : "different" }, again);
    drafted.measuredSpeedup = found.ratio;
    this.inspector.update();
    const methods = new Set(drafted.trace.steps.map((step) => step.method));
    part(this.lanes[1].root, "method").textContent = [...methods].join(", ");
    this.inspector.chooseBest();
    announce(`${found.headline}. ${found.details}`);
  }

  #showVerdict({ headline, details, state }, ...more) {
    this.verdict.replaceChildren(element("div", {}, element("strong", {}, headline), element("p", {}, details)), ...more);
    this.verdict.dataset.state = state;
    this.verdict.hidden = false;
  }

  async #replay(generations, button) {
    this.#replaying?.abort();
    if (button.textContent === "Stop") return;
    this.#replaying = new AbortController();
    button.textContent = "Stop";
    await replay(generations, this.lanes, this.chart, this.#replaying.signal);
    button.textContent = "Replay";
  }
}
