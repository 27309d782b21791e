/** The legend: every source with its colour and how many tokens came from it; pointing at one dims the others. */

import { element } from "../elements/element.js";
import { paced } from "../elements/pace.js";
import { SOURCES } from "./sources.js";

const REST = 100; // milliseconds between two drawings of the counts
const SWITCH = "gander.sources";
const ALWAYS = new Set(["context", "adjacency", "ngram", "bonus"]); // the others show once they have a token

export class Legend {
  #pinned = null;
  #counts = new Map();
  #trace = null;
  #showSoon = paced(() => this.#showCounts(), REST);

  /** scope: the element whose tokens are dimmed while a source is pointed at. */
  constructor(container, scope) {
    this.scope = scope;
    const items = SOURCES.map((source) => this.#item(source));
    const all = [...items, element("li", { class: "switch" }, colourSwitch())];
    container.replaceChildren(element("ul", { class: "legend", "aria-label": "Tokens by source" }, ...all));
  }

  #item({ id, name, words }) {
    const count = element("b", {}, "0");
    const sample = element("span", { class: "token", "data-source": id, "aria-hidden": "true" }, "Aa");
    const button = element("button", { type: "button", title: words, "aria-pressed": "false" }, sample, `${name} `, count);
    const item = element("li", { "data-source": id, class: "none", hidden: !ALWAYS.has(id) }, button);
    button.addEventListener("pointerenter", () => this.#point(id));
    button.addEventListener("pointerleave", () => this.#point(this.#pinned));
    button.addEventListener("click", () => this.#pin(id));
    this.#counts.set(id, { item, button, count });
    return item;
  }

  #point(id) {
    if (id) this.scope.dataset.highlight = id;
    else delete this.scope.dataset.highlight;
  }

  #pin(id) {
    this.#pinned = this.#pinned === id ? null : id;
    for (const [name, { button }] of this.#counts) button.setAttribute("aria-pressed", String(name === this.#pinned));
    this.#point(this.#pinned);
  }

  /** The counts of `trace`, which may be growing. */
  show(trace) {
    this.#trace = trace;
    this.#showSoon();
  }

  #showCounts() {
    for (const [id, { item, count }] of this.#counts) {
      const number = this.#trace.count(id);
      count.textContent = String(number);
      item.classList.toggle("none", number === 0);
      item.hidden = number === 0 && !ALWAYS.has(id);
    }
  }
}

/** Switches colours on or off, for all tabs at once. */
function colourSwitch() {
  const box = element("input", { type: "checkbox", class: "sources-switch" });
  box.checked = localStorage.getItem(SWITCH) !== "off";
  document.documentElement.classList.toggle("no-sources", !box.checked);
  box.addEventListener("change", () => {
    localStorage.setItem(SWITCH, box.checked ? "on" : "off");
    document.documentElement.classList.toggle("no-sources", !box.checked);
    for (const other of document.querySelectorAll(".sources-switch")) other.checked = box.checked;
  });
  return element("label", { class: "sources-toggle" }, box, "Sources");
}
