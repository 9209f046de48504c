// @ts-check
/** "Save now", "Sample now", "Stop and keep": asked of the running training, with an answer. */

import { html, setText } from "./dom.js";

/**
 * @typedef {import("./server.js").RunRequest} RunRequest
 * @typedef {import("./run.js").Run} Run
 *
 * @typedef {object} Button
 * @property {RunRequest} request
 * @property {string} label
 * @property {string} hint
 * @property {string} taken what is said when the training took the request
 */

/** @type {readonly Button[]} */
const BUTTONS = [
  {
    request: "save",
    label: "Save now",
    hint: "Save a checkpoint after the step in progress and go on training",
    taken: "The checkpoint is saved after the step in progress.",
  },
  {
    request: "preview",
    label: "Sample now",
    hint: "Generate the previews after the step in progress and go on training",
    taken: "Samples are generated after the step in progress.",
  },
  {
    request: "stop",
    label: "Stop and keep",
    hint: "End the training after the step in progress and hand what was learned to the graph",
    taken: "Stopping after the step in progress; what was learned is kept.",
  },
];

const FEEDBACK_MS = 6000;

export class ActionBar {
  /** @param {(request: RunRequest) => Promise<{ taken: boolean, reason: string }>} ask */
  constructor(ask) {
    this.ask = ask;
    this.enabled = false;
    this.promptId = "";
    this.stopping = false;
    this.asking = false;
    /** @type {ReturnType<typeof setTimeout> | undefined} */
    this.timer = undefined;
    this.buttons = BUTTONS.map((button) => this.makeButton(button));
    this.feedback = html("div", "feedback", { role: "status", "aria-live": "polite" });
    const row = html("div", "buttons", { role: "group", "aria-label": "Training" }, this.buttons);
    this.element = html("div", "actions", {}, [row, this.feedback]);
    this.drawButtons();
  }

  /**
   * @param {Run} run
   * @param {boolean} offline
   */
  draw(run, offline) {
    const training = run.status === "training";
    if (run.promptId !== this.promptId || !training) {
      if (this.stopping) this.say("");
      this.stopping = false;
    }
    this.promptId = run.promptId;
    this.enabled = training && !offline;
    this.drawButtons();
  }

  drawButtons() {
    const disabled = !this.enabled || this.stopping || this.asking;
    for (const button of this.buttons) button.disabled = disabled;
  }

  /** @param {Button} button */
  async press(button) {
    const promptId = this.promptId;
    this.asking = true;
    this.drawButtons();
    try {
      const answer = await this.ask(button.request);
      if (promptId !== this.promptId) return;
      this.stopping = answer.taken && button.request === "stop" && this.enabled;
      this.say(answer.taken ? button.taken : answer.reason || "The training did not take it.");
    } catch {
      this.say("The server did not answer.");
    } finally {
      this.asking = false;
      this.drawButtons();
    }
  }

  /** @param {string} message */
  say(message) {
    clearTimeout(this.timer);
    setText(this.feedback, message);
    if (!message || this.stopping) return;
    this.timer = setTimeout(() => setText(this.feedback, ""), FEEDBACK_MS);
  }

  /** @param {Button} button */
  makeButton(button) {
    const attributes = { type: "button", title: button.hint, "data-request": button.request };
    const element = html("button", "action", attributes, [button.label]);
    element.addEventListener("click", () => void this.press(button));
    return element;
  }
}
