/** The Completion tab: a prompt, and its continuation in the colours of its sources. */

import { activity } from "../api/activity.js";
import { Generation, bodyOf } from "../api/generation.js";
import { freshId } from "../api/identifier.js";
import { Inspector } from "../drafting/inspector.js";
import { Legend } from "../drafting/legend.js";
import { TokenText } from "../drafting/tokens.js";
import { announce } from "../elements/announcer.js";
import { part } from "../elements/element.js";
import { plural } from "../elements/figures.js";
import { Notices } from "../elements/notices.js";
import { paced } from "../elements/pace.js";
import { preparePrompt } from "../elements/prompt_box.js";
import { ReadingBar } from "../elements/reading_bar.js";
import { RunButton } from "../elements/run_button.js";
import { EXAMPLES } from "./examples.js";


const REST = 40; // milliseconds between two drawings of the text

export class CompletionView {
  #session = freshId("completion");

  constructor(root, engine, settings) {
    this.settings = settings;
    this.prompt = part(root, "prompt");
    this.reply = part(root, "reply");
    this.note = part(root, "note");
    this.reading = new ReadingBar();
    this.reply.before(this.reading.root);
    this.button = new RunButton(part(root, "run"), this, engine);
    this.legend = new Legend(part(root, "legend"), root);
    this.inspector = new Inspector(part(root, "inspector"), root);
    this.notices = new Notices(part(root, "notices"), () => settings.askForKey());
    this.box = preparePrompt(this.prompt, { rows: 16 });
    this.box.set(EXAMPLES[0].prompt);
    part(root, "form").addEventListener("submit", (event) => {
      event.preventDefault();
      if (this.button.canStart) this.#continue();
    });
  }

  shown() {
    this.box.grow();
  }

  async #continue() {
    const generation = new Generation();
    const text = new TokenText(this.reply, generation.trace);
    this.notices.clear();
    this.note.textContent = "";
    this.inspector.follow(generation, [this.reply]);
    this.legend.show(generation.trace);
    const showText = paced(() => text.show(), REST);
    const onChunk = () => {
      this.reading.show(generation.promptShare);
      showText();
      this.inspector.update();
      this.legend.show(generation.trace);
    };
    const body = { ...bodyOf("completion", this.prompt.value, this.settings.value), session_id: this.#session };
    try {
      const wasStopped = await activity.run(this, (signal) => generation.run("completion", body, { signal, onChunk }));
      text.show();
      this.note.textContent = wasStopped ? "Stopped." : endOf(generation);
      announce(`${plural(generation.trace.tokens.length, "token")}. ${this.note.textContent}`);
    } catch (error) {
      this.notices.tell(error, () => this.#continue());
    } finally {
      this.reading.show(null);
    }
  }
}

/** Why a reply ended, where that is worth a sentence. */
export function endOf({ finishReason, trace }) {
  if (finishReason === "length") return `Cut at ${plural(trace.tokens.length, "token")}; Settings has the limit.`;
  return "The model ended here.";
}
