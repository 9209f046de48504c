// @ts-check
/**
 * What can be asked of a training, with an answer: "Save now", "Sample now" and "Stop and keep" while
 * it runs, "Continue" and "Train longer" afterwards. One row of buttons at a time.
 */

import { html, setText } from "./dom.js";

/**
 * @typedef {import("./server.js").RunRequest} RunRequest
 * @typedef {import("./run.js").Run} Run
 * @typedef {{ taken: boolean, reason: string }} Answer
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

/** @type {ReadonlySet<Run["status"]>} */
const BROKEN_OFF = new Set(["stopped", "cancelled", "failed"]);

export class ActionBar {
  /**
   * @param {(request: RunRequest) => Promise<Answer>} ask
   * @param {(more: number | null) => Promise<Answer>} goOn queues the graph, for so many more steps
   */
  constructor(ask, goOn) {
    this.ask = ask;
    this.goOn = goOn;
    this.enabled = false;
    this.isTraining = false;
    this.promptId = "";
    this.stopping = false;
    this.asking = false;
    this.steps = 0;
    /** @type {ReturnType<typeof next>} */
    this.next = null;
    /** @type {ReturnType<typeof setTimeout> | undefined} */
    this.timer = undefined;
    this.buttons = BUTTONS.map((button) => this.makeButton(button));
    this.feedback = html("div", "feedback", { role: "status", "aria-live": "polite" });
    this.training = html("div", "buttons", { role: "group", "aria-label": "Training" }, this.buttons);
    this.continue = this.button("continue", "Continue", "Train this node on to the planned end", () => void this.press(null));
    this.longer = this.button("longer", "Train longer", "Train for more steps from where it ended", () => this.openForm(true));
    this.after = html("div", "buttons", { role: "group", "aria-label": "Go on" }, [this.continue, this.longer]);
    this.more = html("input", "more", { type: "number", min: "1", step: "1", "aria-label": "How many more steps" });
    this.total = html("span", "total");
    this.form = html("form", "buttons", { "aria-label": "Train longer" }, [
      html("label", "", {}, [this.more, " more steps"]),
      this.total,
      html("button", "action", { type: "submit", "data-go-on": "train" }, ["Train"]),
      this.button("back", "Back", "Leave the run as it is", () => this.openForm(false)),
    ]);
    this.form.noValidate = true;
    this.more.addEventListener("input", () => this.drawTotal());
    this.form.addEventListener("submit", (event) => this.submit(event));
    this.form.addEventListener("keydown", (event) => {
      if (event.key === "Escape") this.openForm(false);
    });
    this.formOpen = false;
    const rows = [this.training, this.after, this.form, this.feedback];
    this.element = html("div", "actions", {}, rows);
    this.drawButtons();
  }

  /**
   * @param {Run} run
   * @param {boolean} offline
   */
  draw(run, offline) {
    const training = run.status === "training";
    const other = run.promptId !== this.promptId;
    if (other || (this.stopping && !training)) this.say("");
    if (other || !training) this.stopping = false;
    this.promptId = run.promptId;
    this.enabled = !offline;
    this.steps = Math.max(run.step, run.steps);
    this.next = next(run);
    if (this.next !== "longer") this.formOpen = false;
    this.isTraining = training;
    this.drawButtons();
  }

  drawButtons() {
    const disabled = !this.enabled || this.asking;
    for (const button of this.buttons) button.disabled = disabled || this.stopping || !this.isTraining;
    this.training.hidden = this.next !== null;
    this.after.hidden = this.next === null || this.formOpen;
    this.form.hidden = !this.formOpen;
    this.continue.hidden = this.next !== "continue";
    this.longer.hidden = this.next !== "longer";
    for (const button of [this.continue, this.longer]) button.disabled = disabled;
  }

  /** @param {boolean} open */
  openForm(open) {
    this.formOpen = open;
    if (open) this.more.value = String(Math.max(1, Math.round(this.steps / 2)));
    this.drawTotal();
    this.drawButtons();
    if (open) this.more.select();
    else this.longer.focus();
  }

  drawTotal() {
    const more = this.moreSteps();
    setText(this.total, more === null ? "" : `to ${this.steps + more}`);
  }

  moreSteps() {
    const more = Number(this.more.value);
    return Number.isInteger(more) && more > 0 ? more : null;
  }

  /** @param {Event} event */
  submit(event) {
    event.preventDefault();
    const more = this.moreSteps();
    if (more === null) this.say("Give a whole number of steps above 0.");
    else void this.press(more);
  }

  /** Queues the graph. @param {number | null} more */
  async press(more) {
    const { promptId } = this;
    await this.wait(async () => {
      const answer = await this.goOn(more);
      this.formOpen = this.formOpen && !answer.taken;
      // What trains by now needs no word that it is queued.
      if (!answer.taken || promptId === this.promptId) this.say(answer.reason || "The server did not take it.");
    });
  }

  /** Asks the running training. @param {Button} button */
  async request(button) {
    const promptId = this.promptId;
    await this.wait(async () => {
      const answer = await this.ask(button.request);
      if (promptId !== this.promptId) return;
      this.stopping = answer.taken && button.request === "stop" && this.isTraining;
      this.say(answer.taken ? button.taken : answer.reason || "The training did not take it.");
    });
  }

  /** @param {() => Promise<void>} work */
  async wait(work) {
    this.asking = true;
    this.drawButtons();
    try {
      await work();
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
    element.addEventListener("click", () => void this.request(button));
    return element;
  }

  /**
   * @param {string} name
   * @param {string} label
   * @param {string} hint
   * @param {() => void} onClick
   */
  button(name, label, hint, onClick) {
    const attributes = { type: "button", title: hint, "data-go-on": name };
    const element = html("button", "action", attributes, [label]);
    element.addEventListener("click", onClick);
    return element;
  }
}

/**
 * @param {Run} run
 * @returns {"continue" | "longer" | null} how a run that does not train can go on
 */
function next(run) {
  if (run.status === "done") return "longer";
  if (run.status === "lost") return "continue";
  return BROKEN_OFF.has(run.status) && run.resumable ? "continue" : null;
}
