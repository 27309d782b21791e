/** One reply while it comes: text, reasoning, trace and the times at which they arrived.
 *
 * Knows the API's chunks and the client's clock; knows nothing of the page.
 */

import { stream } from "./client.js";
import { Trace } from "./trace.js";

const PATHS = { completion: "/v1/completions", chat: "/v1/chat/completions" };

export class Generation {
  text = "";
  reasoning = "";
  trace = new Trace();
  arrivals = []; // {ms since the request was sent, tokens known by then}
  promptShare = null; // how much of a long prompt has been read; null before, and once the reply begins
  finishReason = null;
  milliseconds = 0;

  /** Milliseconds to the first token, or null. */
  get firstTokenAt() {
    return this.arrivals.length ? this.arrivals[0].ms : null;
  }

  /** Tokens a second by this clock, without the first arrival, which includes prefill. */
  get tokensPerSecond() {
    if (this.arrivals.length < 2) return null;
    const [first, last] = [this.arrivals[0], this.arrivals.at(-1)];
    return last.ms > first.ms ? ((last.tokens - first.tokens) * 1000) / (last.ms - first.ms) : null;
  }

  /** Send the request and read the reply to its end; `onChunk` is called with every chunk. Throws what `stream` throws. */
  async run(kind, body, { signal, onChunk = () => {} } = {}) {
    const started = performance.now();
    try {
      for await (const chunk of stream(PATHS[kind], body, signal)) {
        this.milliseconds = performance.now() - started;
        this.#read(chunk.prompt_progress);
        for (const choice of chunk.choices) this.#take(choice);
        onChunk(this);
      }
    } finally {
      this.milliseconds = performance.now() - started;
      this.promptShare = null;
    }
    return this;
  }

  #read(progress) {
    this.promptShare = progress ? progress.processed / progress.total : null;
  }

  #take(choice) {
    this.text += choice.text ?? choice.delta?.content ?? "";
    this.reasoning += choice.delta?.reasoning_content ?? "";
    this.finishReason = choice.finish_reason ?? this.finishReason;
    if (!choice.trace) return;
    const before = this.trace.tokens.length;
    this.trace.add(choice.trace);
    const tokens = this.trace.tokens.length;
    if (tokens > before) this.arrivals.push({ ms: this.milliseconds, tokens });
  }
}

/** The body of a request: what is asked, and the settings of the page. */
export function bodyOf(kind, asked, settings, speculation = {}) {
  const { model, temperature, seed, maxTokens, method, maxNodes } = settings;
  const drafting = { method, trace: "trees", ...(maxNodes && method !== "none" ? { max_nodes: maxNodes } : {}) };
  const body = { ...model, temperature, seed, max_tokens: maxTokens, return_progress: true, speculation: { ...drafting, ...speculation } };
  return kind === "chat" ? { messages: asked, ...body } : { prompt: asked, ...body };
}
