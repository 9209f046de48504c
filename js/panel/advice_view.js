// @ts-check
/** What is wrong with a run, each with the one button that helps, and what came of it. */

import { html, setText } from "./dom.js";
import { bestOf } from "./run.js";

/**
 * @typedef {import("./run.js").Run} Run
 * @typedef {import("./run.js").Advice} Advice
 * @typedef {(advice: Advice, run: Run) => Promise<string>} Apply does what is advised, and says what came of it
 */

/** A remedy that is the adapter of an earlier step; all others are settings. */
export const CHECKPOINT = "checkpoint";
const HELD_OUT = "held_out_rises";

export class AdviceView {
  /** @param {Apply} apply */
  constructor(apply) {
    this.apply = apply;
    /** @type {Run | null} */
    this.run = null;
    this.key = "";
    /** What came of the buttons, by run and advice. @type {Map<string, string>} */
    this.answers = new Map();
    this.element = html("ul", "advice", { "aria-label": "Advice", "aria-live": "polite" });
  }

  /** @param {Run} run */
  draw(run) {
    this.run = run;
    const shown = run.advice.filter((advice) => holds(advice, run));
    this.element.hidden = shown.length === 0;
    const key = JSON.stringify([run.version, shown]);
    if (key === this.key) return;
    this.key = key;
    this.element.replaceChildren(...shown.map((advice) => this.row(advice)));
  }

  /** @param {Advice} advice */
  row(advice) {
    if (!advice.setting) return html("li", "", {}, [advice.message]);
    const answer = html("span", "advice-answer", { role: "status" }, [this.answers.get(this.place(advice)) ?? ""]);
    const button = html("button", "action", { type: "button", "data-advice": advice.name, title: titleOf(advice) }, [label(advice)]);
    button.addEventListener("click", () => void this.press(advice, button, answer));
    return html("li", "", {}, [`${advice.message} `, button, " ", answer]);
  }

  /** @param {Advice} advice @param {HTMLButtonElement} button @param {HTMLElement} answer */
  async press(advice, button, answer) {
    const { run } = this;
    if (!run) return;
    const place = this.place(advice);
    button.disabled = true;
    const said = await this.apply(advice, run).catch((error) => String(error?.message ?? error));
    button.disabled = false;
    this.answers.set(place, said);
    setText(answer, said);
    button.focus();
  }

  /** @param {Advice} advice */
  place(advice) {
    return `${this.run?.version} ${advice.name}`;
  }
}

/** What was best so far is it no more after a better one. @param {Advice} advice @param {Run} run */
function holds(advice, run) {
  const best = advice.name === HELD_OUT ? bestOf(run.heldOut) : null;
  return best === null || best.step === advice.value;
}

/** The input of a node, such as `learning_rate`. @param {Advice} advice */
export function inputOf({ setting }) {
  return setting.split(".").at(-1) ?? "";
}

/** @param {Advice} advice */
function label(advice) {
  return advice.setting === CHECKPOINT ? `Use step ${advice.value}` : `Set ${inputOf(advice)} to ${advice.value}`;
}

/** @param {Advice} advice */
function titleOf({ setting }) {
  return setting === CHECKPOINT
    ? "Copies that checkpoint's adapter into the loras folder; the run stays as it is"
    : "Changes the input; what trains now stays as it is";
}
