/** A view's main button: it starts a reply, is Stop while that is made, and is disabled while another view's is. */

import { activity } from "../api/activity.js";

export class RunButton {
  constructor(button, owner, engine) {
    Object.assign(this, { button, owner, engine, label: button.textContent, isAllowed: true });
    engine.addEventListener("change", () => this.update());
    activity.addEventListener("change", () => this.update());
    button.addEventListener("click", (event) => {
      if (!this.isRunning) return;
      event.preventDefault();
      activity.stop();
    });
    this.update();
  }

  get isRunning() {
    return activity.owner === this.owner;
  }

  get canStart() {
    return activity.isFree && this.engine.canAnswer && this.isAllowed;
  }

  allow(isAllowed) {
    this.isAllowed = isAllowed;
    this.update();
  }

  update() {
    const { button } = this;
    button.textContent = this.isRunning ? "Stop" : this.label;
    button.classList.toggle("stop", this.isRunning);
    button.disabled = !this.isRunning && !this.canStart;
  }
}
