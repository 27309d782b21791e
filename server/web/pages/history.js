/** Conversations, kept in this browser alone.
 *
 * Owns their form in the store, which other tabs write, too. Invariants: what does not fit loses its traces before it
 * loses a word; a save changes those alone in the store that this tab changed or removed.
 */

import { freshId } from "../api/identifier.js";

const NAME = "gander.conversations";

export class History {
  #conversations = read();
  #known = new Map(this.#conversations.map((each) => [each.id, JSON.stringify(each)])); // as last read or written

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
    this.#known.delete(id);
  }

  /** Conversations without a message are not kept. False if even without traces there is no room. */
  save() {
    const gone = this.#takeOver();
    const kept = this.#conversations.filter(({ id, messages }) => messages.length && !gone.has(id));
    if (this.#write(kept)) return true;
    for (const conversation of kept.toReversed()) {
      for (const message of conversation.messages) delete message.trace;
      if (this.#write(kept)) return true;
    }
    return false;
  }

  /** Take over what other tabs have stored; what this one has changed stays as it is here. Returns the ids of those
   * that others have removed. */
  #takeOver() {
    const stored = new Map(read().map((each) => [each.id, each]));
    const gone = new Set();
    for (const own of this.#conversations) {
      if (JSON.stringify(own) !== this.#known.get(own.id)) continue;
      if (stored.has(own.id)) Object.assign(own, stored.get(own.id));
      else gone.add(own.id);
    }
    for (const [id, each] of stored) if (!this.#known.has(id) && !this.find(id)) this.#conversations.push(each);
    this.#conversations.sort((one, other) => (one.created < other.created ? 1 : one.created > other.created ? -1 : 0));
    return gone;
  }

  #write(conversations) {
    const isWritten = write(conversations);
    if (isWritten) for (const each of conversations) this.#known.set(each.id, JSON.stringify(each));
    return isWritten;
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
