/** The state of the server and of the model that this page asks, polled: often until it is settled, seldom from then on. */

import { getJson } from "./client.js";

const SOON = 600; // milliseconds
const LATER = 10000;
const SETTLED = new Set(["ready", "absent", "failed"]);

export class Engine extends EventTarget {
  health = null; // the body of /health, of the chosen model where there are several; null where nobody answers
  models = []; // the server's, each with its state, the default one first
  freeBytes = null; // of the machine's memory
  #chosen = null;
  #timer = null;
  #mostCompiling = 0; // methods that were to be compiled at a time

  get isReady() {
    return this.health?.status === "ready";
  }

  /** Whether a reply can be asked for: a model that is absent is loaded by it. */
  get canAnswer() {
    return this.isReady || this.health?.status === "absent";
  }

  /** The model as it is served; null until it is known, which needs a key where the server has keys. */
  get served() {
    return (this.isReady && this.health.engine) || null;
  }

  /** The name that requests give; null for the default model. */
  get model() {
    return this.models.some(({ name }) => name === this.#chosen) ? this.#chosen : null;
  }

  /** The state of the chosen model; undefined until it is known. */
  get chosen() {
    return this.models.find(({ name }) => name === this.model) ?? this.models[0];
  }

  choose(name) {
    this.#chosen = name;
    return this.watch();
  }

  /** Load or unload the chosen model. Throws ApiError where the key is not an admin's. */
  async order(what) {
    await getJson(`/admin/models/${encodeURIComponent(this.chosen.name)}/${what}`, { method: "POST" });
    return this.watch();
  }

  /** How much of what `method` drafts with is compiled, from 0 to 1; null where nothing is missing. */
  compiledShare(method) {
    const compiling = this.health?.compiling ?? [];
    if (!compiling.includes(method)) return null;
    return 1 - compiling.length / Math.max(this.#mostCompiling, compiling.length);
  }

  /** What the engine is doing, for people. */
  get sentence() {
    if (!this.health) return "The server does not answer; trying again.";
    const { status, sentence, fraction, compiling, engine } = this.health;
    if (!sentence) return `The server is ${status}; Settings has a place for its API key.`;
    if (status === "ready" && compiling.length) return `${engine.served_name} · replies are plain: still compiling ${compiling[0]}`;
    if (this.served) return `${engine.served_name} · ${engine.weights} on ${engine.device}`;
    if (status === "absent") return `${this.chosen?.name ?? "The model"} · ${sentence}`;
    if (status === "loading") return `Loading, ${Math.round(fraction * 100)}%: ${sentence}`;
    if (status === "failed") return `The model has been given up: ${sentence}.`;
    return `${{ silent: "Waiting", restarting: "Restarting", unloading: "Unloading" }[status] ?? "Stopping"}: ${sentence}`;
  }

  /** Ask now, and from then on again and again. */
  async watch() {
    clearTimeout(this.#timer);
    try {
      const server = await getJson("/health");
      this.models = server.models ?? [];
      this.freeBytes = server.free_bytes ?? null;
      const own = this.chosen;
      const isWhole = !own || (this.models.length === 1 && own.status === server.status);
      this.health = isWhole ? server : await getJson(`/health?model=${encodeURIComponent(own.name)}`);
    } catch {
      this.health = null;
    }
    this.#mostCompiling = Math.max(this.#mostCompiling, this.health?.compiling?.length ?? 0);
    this.dispatchEvent(new Event("change"));
    clearTimeout(this.#timer);
    const isSettled = SETTLED.has(this.health?.status) && this.health.compiling && !this.health.compiling.length;
    this.#timer = setTimeout(() => this.watch(), isSettled ? LATER : SOON);
  }

  /** Wait until the model is loaded, which a small request brings about, and drafts by `method`. Calls `onWait` with a
   * sentence and a share of what is awaited. Throws an ApiError where the model cannot be loaded. */
  async prepare(method, signal, onWait) {
    if (!this.isReady) {
      const loading = getJson("/tokenize", { method: "POST", body: { prompt: "", ...this.named }, signal });
      let isOver = false;
      const ended = loading.finally(() => (isOver = true));
      ended.catch(() => {}); // it is thrown below
      while (!isOver) {
        onWait(this.sentence, this.health?.fraction ?? 0);
        await Promise.race([ended, this.#next()]);
        signal.throwIfAborted();
      }
      await ended;
      await this.watch();
    }
    for (let share = this.compiledShare(method); share !== null; share = this.compiledShare(method)) {
      onWait(`Compiling what ${method} drafts with, once on this machine; until then it would run plain.`, share);
      await this.#next();
      signal.throwIfAborted();
    }
  }

  /** The fields by which a request names the model. */
  get named() {
    return this.model === null ? {} : { model: this.model };
  }

  /** The next time that something is known. */
  #next() {
    clearTimeout(this.#timer);
    this.#timer = setTimeout(() => this.watch(), SOON);
    return new Promise((resolve) => this.addEventListener("change", resolve, { once: true }));
  }
}
