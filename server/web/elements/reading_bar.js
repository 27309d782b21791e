/** A bar that shows how much of a long prompt has been read, until the first token comes. */

import { element } from "./element.js";

export class ReadingBar {
  constructor() {
    this.root = element("progress", { max: 1, value: 0, "aria-label": "How much has been read", hidden: true });
  }

  /** share: of the prompt, from 0 to 1; null where none is being read. */
  show(share) {
    this.root.hidden = share === null;
    this.root.value = share ?? 0;
  }
}
