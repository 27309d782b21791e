/** One message of a chat on the page: what was said, or a reply that grows, its reasoning folded away. */

import { element } from "../elements/element.js";
import { paced } from "../elements/pace.js";
import { ReadingBar } from "../elements/reading_bar.js";
import { show } from "./markdown.js";

const REST = 50; // milliseconds between two renderings

/** pictures: data: URLs. */
export function saidBy(role, text, pictures = []) {
  const shown = pictures.map((url, index) => element("img", { src: url, alt: `Picture ${index + 1}` }));
  const parts = shown.length ? [element("div", { class: "pictures" }, ...shown), text] : [text];
  return element("article", { class: `message ${role}`, "aria-label": role === "user" ? "You" : role }, ...parts);
}

export class ReplyMessage {
  #renderSoon = paced(() => this.#renderLatest(), REST);
  #isStale = false;
  #onShown = null;

  /** source: {text, reasoning, trace, promptShare}, which may still grow. */
  constructor(source) {
    this.source = source;
    this.text = element("div", { class: "markdown" });
    this.reasoning = element("div", { class: "reasoning-text" });
    this.fold = element("details", { class: "reasoning", hidden: true }, element("summary", {}, "Reasoning"), this.reasoning);
    this.end = element("p", { class: "hint end" });
    this.reading = new ReadingBar();
    const parts = [this.reading.root, this.fold, this.text, this.end];
    this.root = element("article", { class: "message assistant", "aria-label": "Reply" }, ...parts);
  }

  /** Show what has come, soon. onShown: afterwards. */
  update(onShown) {
    this.#isStale = true;
    this.#onShown = onShown;
    this.#renderSoon();
  }

  #renderLatest() {
    if (!this.#isStale) return; // all of it has been shown since
    this.render();
    this.#onShown();
  }

  /** Show everything now. */
  render() {
    const { text, reasoning, trace, promptShare = null } = this.source;
    this.#isStale = false;
    this.reading.show(promptShare);
    this.fold.hidden = !reasoning;
    this.reasoning.textContent = reasoning;
    show(this.text, text, trace);
  }
}
