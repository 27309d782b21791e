/** Tokens on the page: one span each, coloured by its source, added at the end and never touched again.
 *
 * Owns the spans. What a span's card says is looked up in the trace that was given with its container.
 */

import { element } from "../elements/element.js";

const TRACES = new WeakMap(); // container -> Trace

/** Tell the card that this container's tokens are those of `trace`. */
export function bind(container, trace) {
  TRACES.set(container, trace);
  container.classList.add("tokens");
}

/** The token and trace of a span, or null. */
export function tokenOf(span) {
  const container = span.closest(".tokens");
  const trace = container && TRACES.get(container);
  const token = trace?.tokens[Number(span.dataset.token)];
  return token ? { token, trace, container } : null;
}

export function tokenSpan(token, index, text = token.text) {
  const attributes = { class: "token", "data-source": token.source, "data-token": index, "data-step": token.step };
  return element("span", attributes, text);
}

/** Raw text of a reply: appends what is new since the last call. */
export class TokenText {
  #shown = 0;

  constructor(container, trace) {
    this.container = container;
    this.trace = trace;
    container.replaceChildren();
    bind(container, trace);
  }

  /** Show tokens up to the first `count`, by default all; true if there were new ones. */
  show(count = this.trace.tokens.length) {
    const fresh = document.createDocumentFragment();
    for (; this.#shown < count; this.#shown++) {
      const token = this.trace.tokens[this.#shown];
      if (token.text) fresh.append(tokenSpan(token, this.#shown));
    }
    const hasNew = fresh.hasChildNodes();
    this.container.append(fresh);
    return hasNew;
  }
}

/** Mark the tokens of one step; a container shows at most one step so. */
export function markStep(container, number) {
  for (const span of container.querySelectorAll(".token.of-step")) span.classList.remove("of-step");
  if (number === null) return;
  const spans = container.querySelectorAll(`.token[data-step="${number}"]`);
  for (const span of spans) span.classList.add("of-step");
  if (spans.length) bringIntoView(container, spans[0]);
}

/** Scrolls the container alone, if it scrolls. */
function bringIntoView(container, span) {
  const [frame, place] = [container.getBoundingClientRect(), span.getBoundingClientRect()];
  const isSeen = place.top >= frame.top && place.bottom <= frame.bottom;
  if (!isSeen) container.scrollTop += place.top - frame.top - frame.height / 3;
}
