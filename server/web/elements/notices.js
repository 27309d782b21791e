/** Shows an error as a sentence where it happened, with a button for what can be done about it. */

import { element } from "./element.js";

export class Notices {
  /** askForKey: opens the place for the API key. */
  constructor(container, askForKey) {
    this.container = container;
    this.askForKey = askForKey;
  }

  clear() {
    this.container.replaceChildren();
  }

  /** kind: "error" or "note". actions: [{label, act}]. */
  say(sentence, { kind = "error", actions = [] } = {}) {
    const buttons = actions.map(({ label, act }) => element("button", { type: "button", onclick: act }, label));
    const role = kind === "error" ? "alert" : "status";
    this.container.replaceChildren(element("div", { class: `notice ${kind}`, role }, element("p", {}, sentence), ...buttons));
  }

  /** retry: a function that tries again, where that may succeed. */
  tell(error, retry) {
    const actions = [];
    if (error.status === 401) actions.push({ label: "Enter the key", act: this.askForKey });
    if (retry && mayPass(error)) actions.push({ label: "Try again", act: retry });
    this.say(sentenceOf(error), { actions });
    if (error.status === 401) this.askForKey();
  }
}

function mayPass({ status, code }) {
  return status === 0 || status === 401 || status === 429 || status >= 500 || code === "stream_cut";
}

function sentenceOf(error) {
  if (error.name !== "ApiError") return `This page made a mistake: ${error.message}`;
  const wait = error.retryAfter ? ` Try again in ${error.retryAfter} s.` : "";
  return /[.!?]$/.test(error.message) ? error.message + wait : `${error.message}.${wait}`;
}
