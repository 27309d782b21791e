/** One column of the race: its clock, its track, its figures, its text. Shows a generation as it is at some moment. */

import { TokenText } from "../drafting/tokens.js";
import { fromTemplate, part } from "../elements/element.js";
import { clock, rate } from "../elements/figures.js";

export class Lane {
  #parts = {};

  constructor(name) {
    this.root = fromTemplate("lane-template");
    const names = ["name", "method", "state", "clock", "progress", "goose", "first", "rate", "tokens", "steps", "text"];
    for (const each of names) this.#parts[each] = part(this.root, each);
    this.#parts.name.textContent = name;
    this.#parts.text.setAttribute("aria-label", `${name} reply`);
    this.root.dataset.lane = name.toLowerCase();
  }

  get text() {
    return this.#parts.text;
  }

  /** Start over with `generation`. finish: tokens at the end of the track. */
  follow(generation, { method, state, finish }) {
    this.generation = generation;
    this.finish = finish;
    this.tokenText = new TokenText(this.text, generation.trace);
    this.#parts.method.textContent = method;
    this.say(state);
    this.show(0, 0);
  }

  say(state) {
    this.#parts.state.textContent = state;
    this.root.dataset.state = state;
  }

  /** The lane at `milliseconds` into its reply, with the `count` tokens that were there. */
  show(milliseconds, count) {
    const { first, rate: speed, tokens, steps } = this.#parts;
    const { trace, firstTokenAt } = this.generation;
    this.#parts.clock.textContent = clock(milliseconds);
    const isFirst = firstTokenAt !== null && milliseconds >= firstTokenAt;
    first.textContent = isFirst ? `${firstTokenAt.toFixed(0)} ms` : "–";
    speed.textContent = isFirst && count > 1 && milliseconds > firstTokenAt ? rate(this.#rateAt(milliseconds, count)) : "–";
    tokens.textContent = String(count);
    steps.textContent = String(count ? trace.tokens[count - 1].step : 0);
    this.#move(count);
    if (this.tokenText.show(count)) this.text.scrollTop = this.text.scrollHeight;
  }

  #rateAt(milliseconds, count) {
    const { ms, tokens } = this.generation.arrivals[0];
    return ((count - tokens) * 1000) / (milliseconds - ms);
  }

  #move(count) {
    const share = Math.min(1, count / this.finish());
    this.root.style.setProperty("--share", share.toFixed(4));
  }
}
