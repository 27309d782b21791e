/** The settings panel: the options of every request of this page. Kept in the browser; the key is in api/key.js. */

import { apiKey } from "../api/key.js";
import { element } from "./element.js";

const NAME = "gander.settings";
const DEFAULTS = { method: "auto", temperature: 0, seed: 7, maxTokens: 256, maxNodes: null };

export class Settings {
  model = {}; // the fields by which requests name it

  constructor(form, toggle, summary) {
    Object.assign(this, { form, toggle, summary });
    this.#fill({ ...DEFAULTS, ...read() });
    form.addEventListener("submit", (event) => event.preventDefault());
    form.addEventListener("input", () => this.#onInput());
    toggle.addEventListener("click", () => this.show(form.hidden));
    form.querySelector("#settings-close").addEventListener("click", () => this.show(false));
    form.addEventListener("keydown", (event) => this.#onKey(event));
    this.#summarise();
  }

  /** {model, method, temperature, seed, maxTokens, maxNodes}; a field that makes no sense has its default. */
  get value() {
    const { method, temperature, seed, maxTokens, maxNodes } = this.form.elements;
    return {
      model: this.model,
      method: method.value,
      temperature: number(temperature) ?? DEFAULTS.temperature,
      seed: number(seed),
      maxTokens: number(maxTokens) ?? DEFAULTS.maxTokens,
      maxNodes: number(maxNodes),
    };
  }

  show(isShown) {
    this.form.hidden = !isShown;
    this.toggle.setAttribute("aria-expanded", String(isShown));
    (isShown ? this.form.elements.method : this.toggle).focus();
  }

  askForKey() {
    this.show(true);
    this.form.elements.key.focus();
  }

  /** The engine's own methods and limits, once it is loaded. */
  offer({ methods, max_nodes: maxNodes, max_model_len: maxTokens }) {
    const { method } = this.form.elements;
    const wanted = read().method ?? method.value;
    const names = ["auto", ...methods.filter((name) => name !== "auto")];
    method.replaceChildren(...names.map((name) => element("option", { value: name }, name)));
    method.value = names.includes(wanted) ? wanted : "auto";
    this.form.elements.maxNodes.max = maxNodes;
    this.form.elements.maxTokens.max = maxTokens;
    this.#summarise();
  }

  #fill({ method, temperature, seed, maxTokens, maxNodes }) {
    const fields = this.form.elements;
    if (method !== "auto") fields.method.append(element("option", { value: method }, method));
    const values = { method, temperature, seed, maxTokens, maxNodes, key: apiKey.value };
    for (const [name, value] of Object.entries(values)) fields[name].value = value ?? "";
    fields.keepKey.checked = apiKey.isKept;
  }

  #onKey(event) {
    if (event.key !== "Escape") return;
    event.stopPropagation(); // it closes the panel, it does not stop a reply
    this.show(false);
  }

  #onInput() {
    const { key, keepKey } = this.form.elements;
    apiKey.set(key.value.trim(), keepKey.checked);
    localStorage.setItem(NAME, JSON.stringify(this.value));
    this.#summarise();
  }

  #summarise() {
    const { method, temperature, seed, maxTokens } = this.value;
    this.summary.textContent = `${method} · T ${temperature} · seed ${seed ?? "any"} · ${maxTokens} tokens`;
  }
}

function number(field) {
  return field.value !== "" && field.validity.valid ? field.valueAsNumber : null;
}

function read() {
  try {
    return JSON.parse(localStorage.getItem(NAME)) ?? {};
  } catch {
    return {};
  }
}
