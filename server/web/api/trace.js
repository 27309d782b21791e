/** The trace of one reply: its tokens, its steps, and figures computed from them. Pure. */

export class Trace {
  tokens = [];
  steps = [];
  #byNumber = new Map();
  #counts = new Map();
  #tokensOfStep = new Map();

  /** Takes the `trace` object of a chunk. */
  add({ tokens = [], steps = [] }) {
    for (const token of tokens) this.#addToken(token);
    for (const step of steps) this.#addStep(step);
  }

  #addToken(token) {
    this.tokens.push(token);
    this.#counts.set(token.source, (this.#counts.get(token.source) ?? 0) + 1);
    const siblings = this.#tokensOfStep.get(token.step);
    if (siblings) siblings.push(token);
    else this.#tokensOfStep.set(token.step, [token]);
  }

  #addStep(step) {
    this.steps.push(step);
    this.#byNumber.set(step.step, step);
  }

  /** The step of this number, or undefined: its tokens may come before it is told of. */
  step(number) {
    return this.#byNumber.get(number);
  }

  tokensOf(number) {
    return this.#tokensOfStep.get(number) ?? [];
  }

  count(source) {
    return this.#counts.get(source) ?? 0;
  }

  get text() {
    return this.tokens.map((token) => token.text).join("");
  }

  /** τ: tokens per target forward, pooled. */
  get acceptanceLength() {
    return this.steps.length ? this.tokens.length / this.steps.length : null;
  }

  /** The speedup as the server measures it: seconds of plain decoding over seconds needed, in steps without prefill. */
  get speedup() {
    let plain = 0;
    let taken = 0;
    for (const step of this.steps) {
      if (step.prefill_rows) continue;
      plain += step.plain_seconds;
      taken += step.seconds;
    }
    return taken > 0 ? plain / taken : null;
  }

  get drafted() {
    return this.steps.reduce((sum, step) => sum + step.drafted, 0);
  }

  get accepted() {
    return this.steps.reduce((sum, step) => sum + step.accepted, 0);
  }
}

/** A trace as history keeps it: everything but the trees, which are large. */
export function packed(trace) {
  const steps = trace.steps.map(({ tree, ...step }) => step);
  return { tokens: trace.tokens, steps };
}

export function unpacked(kept) {
  const trace = new Trace();
  if (kept) trace.add(kept);
  return trace;
}
