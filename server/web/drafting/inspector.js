/** How one reply was made: its figures, the strip of its steps, and the tree of the step that is chosen. */

import { fromTemplate, part } from "../elements/element.js";
import { fixed, percent, rate } from "../elements/figures.js";
import { paced } from "../elements/pace.js";
import { Strip } from "./strip.js";
import { markStep } from "./tokens.js";
import { TreeView } from "./tree.js";

const LARGE = 24; // nodes
const SLOW = 0.95; // a speedup below is a loss
const REST = 100; // milliseconds between two drawings of the figures

export class Inspector {
  #texts = [];
  #showSoon = paced(() => this.#showFigures(), REST);

  /** Replaces `place`; tokens inside `scope` choose their step by a click. */
  constructor(place, scope) {
    this.root = fromTemplate("inspector-template");
    place.replaceWith(this.root);
    this.tree = new TreeView(part(this.root, "tree"));
    this.strip = new Strip(part(this.root, "strip"), (number) => this.#showStep(number));
    document.addEventListener("theme-change", () => this.strip.redraw());
    scope.addEventListener("choose-step", (event) => {
      const shown = this.#texts.includes(event.target);
      if (shown) this.strip.choose(event.detail.step);
    });
  }

  /** The reply to show from now on. texts: the containers of its tokens.
   *
   * generation: {trace, tokensPerSecond}, and measuredSpeedup where it was run plain too.
   */
  follow(generation, texts) {
    for (const text of this.#texts) markStep(text, null);
    this.generation = generation;
    this.#texts = texts;
    this.strip.reset(generation.trace);
    this.tree.clear();
    this.update();
  }

  /** The reply has grown: show it soon. */
  update() {
    this.#showSoon();
    this.strip.update();
  }

  #showFigures() {
    const { trace, tokensPerSecond, measuredSpeedup } = this.generation;
    const speedup = measuredSpeedup ?? trace.speedup;
    const figures = {
      tau: fixed(trace.acceptanceLength, 2),
      rate: rate(tokensPerSecond ?? null),
      speedup: speedup === null ? "–" : `${speedup.toFixed(2)}×`,
      basis: basisOf(speedup, Boolean(measuredSpeedup)),
      tokens: trace.tokens.length,
      steps: trace.steps.length,
      accepted: trace.drafted ? percent(trace.accepted / trace.drafted) : "–",
    };
    for (const [name, value] of Object.entries(figures)) part(this.root, name).textContent = value;
  }

  /** Choose the step that shows most: many accepted nodes, some rejected ones, and a tree small enough to be seen whole. */
  chooseBest() {
    const isTelling = ({ drafted, accepted }) => accepted < drafted && drafted <= LARGE;
    const worth = (step) => (isTelling(step) ? LARGE : 0) + Math.min(step.accepted, LARGE);
    const { steps } = this.generation.trace;
    const best = steps.reduce((most, step) => (most && worth(most) >= worth(step) ? most : step), null);
    if (best?.accepted) this.strip.choose(best.step);
  }

  #showStep(number) {
    this.tree.show(this.generation.trace, number);
    for (const text of this.#texts) markStep(text, number);
  }
}

/** Where a speedup comes from. An estimate compares with what a plain step took when the server started. */
export function basisOf(speedup, isMeasured) {
  if (isMeasured) return "measured";
  return speedup !== null && speedup < SLOW ? "estimated: steps are slower now than at the start" : "estimated";
}
