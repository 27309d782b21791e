/** Conversations, kept in this browser alone.
 *
 * Owns their form in the store. Invariant: what does not fit loses its traces before it loses a word.
 */

import { freshId } from "../api/identifier.js";

const NAME = "gander.conversations";

export class History {
  #conversations = read();

  get conversations() {
    return this.#conversations;
  }

  find(id) {
    return this.#conversations.find((conversation) => conversation.id === id);
  }

  create() {
    const conversation = { id: freshId("chat"), title: "New chat", created: new Date().toISOString(), messages: [] };
    this.#conversations.unshift(conversation);
    return conversation;
  }

  rename(id, title) {
    this.find(id).title = title.trim() || "Untitled";
    this.save();
  }

  remove(id) {
    this.#conversations = this.#conversations.filter((conversation) => conversation.id !== id);
    this.save();
  }

  /** Conversations without a message are not kept. False if even without traces there is no room. */
  save() {
    const kept = this.#conversations.filter(({ messages }) => messages.length);
    if (write(kept)) return true;
    for (const conversation of kept.toReversed()) {
      for (const message of conversation.messages) delete message.trace;
      if (write(kept)) return true;
    }
    return false;
  }

  /** All conversations as JSON for download, without traces. */
  export() {
    const plain = this.#conversations.filter(({ messages }) => messages.length).map((conversation) => ({
      ...conversation,
      messages: conversation.messages.map(({ trace, ...message }) => message),
    }));
    return JSON.stringify({ conversations: plain }, null, 2);
  }
}

function read() {
  try {
    const kept = JSON.parse(localStorage.getItem(NAME)) ?? [];
    return Array.isArray(kept) ? kept : [];
  } catch {
    return [];
  }
}

function write(conversations) {
  try {
    localStorage.setItem(NAME, JSON.stringify(conversations));
    return true;
  } catch {
    return false; // the store is full
  }
}
