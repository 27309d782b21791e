/** The choice of the model, where the server has several: their states, what the chosen one needs, load and unload. */

import { element, part } from "./element.js";
import { gibibytes } from "./figures.js";

const ORDERS = { absent: "load", failed: "load", ready: "unload" };
const LABELS = { load: "Load", unload: "Unload" };

export class ModelPicker {
  constructor(root, engine, settings) {
    Object.assign(this, { root, engine, settings });
    this.select = part(root, "model");
    this.button = part(root, "order");
    this.need = part(root, "need");
    this.select.addEventListener("change", () => this.#choose());
    this.button.addEventListener("click", () => this.#order());
    engine.addEventListener("change", () => this.#show());
  }

  #choose() {
    this.need.textContent = "";
    this.engine.choose(this.select.value);
  }

  async #order() {
    try {
      await this.engine.order(ORDERS[this.engine.health.status]);
    } catch (error) {
      this.need.textContent = error.message;
      if (error.status === 401 || error.status === 403) this.settings.askForKey();
    }
  }

  #show() {
    const { models, health, chosen, freeBytes } = this.engine;
    this.root.hidden = models.length < 2;
    if (this.root.hidden) return;
    this.#list(models);
    this.select.value = chosen.name;
    const order = ORDERS[health?.status];
    this.button.disabled = !order;
    this.button.textContent = LABELS[order] ?? `${health?.status ?? "unreachable"}…`;
    this.root.title = needs(chosen, freeBytes);
  }

  /** Change what differs alone: a list that is open must not close. */
  #list(models) {
    if (this.select.length !== models.length) {
      this.select.replaceChildren(...models.map(({ name }) => element("option", { value: name })));
    }
    models.forEach(({ name, status }, index) => {
      const text = `${name} (${status})`;
      if (this.select.options[index].textContent !== text) this.select.options[index].textContent = text;
    });
  }
}

/** What a model takes of the memory, and what the machine has. */
export function needs({ needed_bytes: needed, expected_bytes: expected, status }, freeBytes) {
  const free = freeBytes === null ? "" : ` The machine has ${gibibytes(freeBytes)} free.`;
  if (status === "ready") return `Takes ${gibibytes(expected)} once its cache is full.${free}`;
  return `${needed ? `Its files have ${gibibytes(needed)}.` : "It is not on this machine yet."}${free}`;
}
