/** What a race asks: a prompt or one of the examples, pictures with it, and whether it is continued or answered. */

import { bodyOf } from "../api/generation.js";
import { contentOf } from "../api/picture.js";
import { element, part } from "../elements/element.js";
import { PictureTray } from "../elements/picture_tray.js";
import { preparePrompt } from "../elements/prompt_box.js";
import { EXAMPLES } from "./examples.js";

export class RacePrompt {
  constructor(form, engine, notices) {
    this.form = form;
    this.prompt = part(form, "prompt");
    this.examples = part(form, "examples");
    this.box = preparePrompt(this.prompt, { rows: 7 });
    this.pictures = new PictureTray(form, engine, notices, () => this.#onPictures());
    const chips = EXAMPLES.map((example) => {
      const choose = () => this.#choose(example);
      return element("button", { type: "button", class: "chip", onclick: choose }, example.label);
    });
    this.examples.append(...chips);
    this.#choose(EXAMPLES[0]);
    this.prompt.addEventListener("input", () => this.#mark(null));
  }

  /** The request, the same for both runs but for the method. Without a seed in the settings, one is drawn. */
  question(given) {
    const kind = this.form.elements.kind.value;
    const settings = { ...given, seed: given.seed ?? crypto.getRandomValues(new Uint32Array(1))[0] };
    const content = contentOf(this.prompt.value, this.pictures.urls);
    const asked = kind === "chat" ? [{ role: "user", content }] : content;
    const body = (method) => bodyOf(kind, asked, { ...settings, method });
    return { kind, settings, body, hasPictures: this.pictures.urls.length > 0 };
  }

  #choose(example) {
    this.pictures.set([]);
    this.form.elements.kind.value = example.kind;
    this.box.set(example.prompt);
    this.#mark(example);
  }

  #mark(example) {
    [...this.examples.children].forEach((chip, index) => {
      chip.setAttribute("aria-pressed", String(EXAMPLES[index] === example));
    });
  }

  /** Only a chat has pictures. */
  #onPictures() {
    const hasPictures = this.pictures.urls.length > 0;
    if (hasPictures) this.form.elements.kind.value = "chat";
    for (const choice of this.form.elements.kind) choice.disabled = hasPictures && choice.value !== "chat";
    if (hasPictures) this.#mark(null);
  }
}
