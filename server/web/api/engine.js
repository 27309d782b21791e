/** The engine's state, polled from the server: often until it is ready, seldom from then on. */

import { getJson } from "./client.js";

const SOON = 600; // milliseconds
const LATER = 10000;

export class Engine extends EventTarget {
  health = null; // the body of /health, or null where nobody answers
  #timer = null;

  get isReady() {
    return this.health?.status === "ready";
  }

  /** The served model; null until it is known, which needs a key where the server has keys. */
  get served() {
    return (this.isReady && this.health.engine) || null;
  }

  /** What the engine is doing, for people. */
  get sentence() {
    if (!this.health) return "The server does not answer; trying again.";
    const { status, sentence, fraction, compiling, engine } = this.health;
    if (!sentence) return `The server is ${status}; Settings has a place for its API key.`;
    if (status === "ready" && compiling.length) return `${engine.served_name} · replies are plain: still compiling ${compiling[0]}`;
    if (status === "ready") return `${engine.served_name} · ${engine.weights} on ${engine.device}`;
    if (status === "loading") return `Loading, ${Math.round(fraction * 100)}%: ${sentence}`;
    if (status === "failed") return `The engine has been given up: ${sentence}. Restart the server.`;
    return `${{ silent: "Waiting", restarting: "Restarting" }[status] ?? "Stopping"}: ${sentence}`;
  }

  /** Ask now, and from then on again and again. */
  async watch() {
    clearTimeout(this.#timer);
    try {
      this.health = await getJson("/health");
    } catch {
      this.health = null;
    }
    this.dispatchEvent(new Event("change"));
    clearTimeout(this.#timer);
    const isSettled = this.served && !this.health.compiling.length;
    this.#timer = setTimeout(() => this.watch(), isSettled ? LATER : SOON);
  }
}
