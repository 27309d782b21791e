/** One reply at a time: who is generating now, and how to stop it. Replies side by side would slow each other. */

class Activity extends EventTarget {
  #controller = null;
  owner = null;

  get isFree() {
    return this.owner === null;
  }

  /** Run `work(signal)` for `owner`; nothing else starts until it is done. True if it was stopped. */
  async run(owner, work) {
    if (!this.isFree) throw new Error("something else is running");
    this.#controller = new AbortController();
    this.#set(owner);
    try {
      await work(this.#controller.signal);
      return false;
    } catch (error) {
      if (error.name === "AbortError") return true;
      throw error;
    } finally {
      this.#set(null);
    }
  }

  stop() {
    this.#controller?.abort();
  }

  #set(owner) {
    this.owner = owner;
    this.dispatchEvent(new Event("change"));
  }
}

export const activity = new Activity();
