/** The pictures of a message that is being written: added by button, drop or paste, shown, and taken when it is sent. */

import { pictureUrl } from "../api/picture.js";
import { announce } from "./announcer.js";
import { element, part } from "./element.js";

const BLIND = "This model takes no pictures.";
const UNREAD = "That is no picture that this browser can read.";

export class PictureTray {
  #urls = [];

  /** form: has the parts pictures, add-picture and picture-file. onChange: called when there are others. */
  constructor(form, engine, notices, onChange = () => {}) {
    Object.assign(this, { engine, notices, onChange });
    this.shown = part(form, "pictures");
    this.button = part(form, "add-picture");
    const chooser = part(form, "picture-file");
    this.button.addEventListener("click", () => chooser.click());
    chooser.addEventListener("change", () => {
      this.#add([...chooser.files]);
      chooser.value = "";
    });
    form.addEventListener("dragover", (event) => event.dataTransfer.types.includes("Files") && event.preventDefault());
    form.addEventListener("drop", (event) => this.#take(event, event.dataTransfer));
    form.addEventListener("paste", (event) => this.#take(event, event.clipboardData));
    engine.addEventListener("change", () => (this.button.hidden = !this.#isTaken));
  }

  /** data: URLs, in the order in which they were added. */
  get urls() {
    return this.#urls;
  }

  set(urls) {
    this.#urls = urls;
    this.shown.replaceChildren(...urls.map((url, index) => this.#picture(url, index)));
    this.shown.hidden = !urls.length;
    this.onChange();
  }

  get #isTaken() {
    return Boolean(this.engine.served?.input_modalities.includes("image"));
  }

  /** What is pasted as text, too, is text. */
  #take(event, { files, types }) {
    if (!files.length || types.includes("text/plain")) return;
    event.preventDefault();
    this.#add([...files]);
  }

  async #add(files) {
    if (this.engine.served && !this.#isTaken) return this.notices.say(BLIND, { kind: "note" });
    const read = await Promise.allSettled(files.map(pictureUrl));
    const found = read.flatMap(({ value }) => value ?? []);
    if (found.length < files.length) this.notices.say(UNREAD);
    if (!found.length) return undefined;
    this.set([...this.#urls, ...found]);
    return announce(`${this.#urls.length} in all: a picture was added.`);
  }

  #picture(url, index) {
    const name = `picture ${index + 1}`;
    const onclick = () => this.set(this.#urls.toSpliced(index, 1));
    const remove = element("button", { type: "button", class: "quiet icon remove", "aria-label": `Remove ${name}`, onclick });
    return element("span", { class: "picture" }, element("img", { src: url, alt: name }), remove);
  }
}
