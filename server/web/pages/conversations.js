/** The list of conversations beside the chat: choose, rename, delete, download. */

import { element } from "../elements/element.js";

export class ConversationList {
  /** on: {choose(id), rename(id, title), remove(id)}. */
  constructor(container, on) {
    Object.assign(this, { container, on });
  }

  show(conversations, currentId) {
    this.container.replaceChildren(...conversations.map((conversation) => this.#item(conversation, currentId)));
  }

  #item({ id, title }, currentId) {
    const open = element("button", { type: "button", class: "title", "aria-current": id === currentId && "true" }, title);
    open.addEventListener("click", () => this.on.choose(id));
    const rename = element("button", { type: "button", class: "quiet icon rename", "aria-label": `Rename ${title}` });
    const remove = element("button", { type: "button", class: "quiet icon remove", "aria-label": `Delete ${title}` });
    const item = element("li", {}, open, rename, remove);
    rename.addEventListener("click", () => this.#rename(item, open, { id, title }));
    remove.addEventListener("click", () => this.#remove(remove, id));
    return item;
  }

  #rename(item, open, { id, title }) {
    const field = element("input", { type: "text", "aria-label": "New name", maxlength: 80 });
    field.value = title;
    let isDone = false;
    const end = (name) => {
      if (isDone) return;
      isDone = true;
      this.on.rename(id, name);
    };
    field.addEventListener("keydown", (event) => {
      if (event.key === "Enter") end(field.value);
      if (event.key === "Escape") end(title);
    });
    field.addEventListener("blur", () => end(field.value));
    open.replaceWith(field);
    field.select();
  }

  /** The first press asks, the second deletes. */
  #remove(button, id) {
    if (button.classList.contains("sure")) return this.on.remove(id);
    button.classList.add("sure");
    button.setAttribute("aria-label", "Really delete?");
    button.title = "Really delete?";
    button.addEventListener("blur", () => button.classList.remove("sure"), { once: true });
    return undefined;
  }
}

/** Lets the browser download `text` as a file. */
export function download(name, text) {
  const address = URL.createObjectURL(new Blob([text], { type: "application/json" }));
  element("a", { href: address, download: name }).click();
  setTimeout(() => URL.revokeObjectURL(address), 1000);
}
