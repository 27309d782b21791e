/** One message of a chat on the page: what was said, or a reply that grows, its reasoning folded away. */

import { element } from "./element.js";
import { show } from "./markdown.js";

const REST = 3; // after a rendering the page gets this many times as long for everything else

export function saidBy(role, text) {
  return element("article", { class: `message ${role}`, "aria-label": role === "user" ? "You" : role }, text);
}

export class ReplyMessage {
  #isStale = false;
  #notBefore = 0;

  /** source: {text, reasoning, trace}, which may still grow. */
  constructor(source) {
    this.source = source;
    this.text = element("div", { class: "markdown" });
    this.reasoning = element("div", { class: "reasoning-text" });
    this.fold = element("details", { class: "reasoning", hidden: true }, element("summary", {}, "Reasoning"), this.reasoning);
    this.end = element("p", { class: "hint end" });
    this.root = element("article", { class: "message assistant", "aria-label": "Reply" }, this.fold, this.text, this.end);
  }

  /** Show what has come, at the next frame that has time for it. onShown: afterwards. */
  update(onShown = () => {}) {
    if (this.#isStale) return;
    this.#isStale = true;
    const draw = (now) => {
      if (now < this.#notBefore) return requestAnimationFrame(draw);
      this.render();
      onShown();
      return undefined;
    };
    requestAnimationFrame(draw);
  }

  render() {
    const started = performance.now();
    const { text, reasoning, trace } = this.source;
    this.#isStale = false;
    this.fold.hidden = !reasoning;
    this.reasoning.textContent = reasoning;
    show(this.text, text, trace);
    const ended = performance.now();
    this.#notBefore = ended + REST * (ended - started);
  }
}
