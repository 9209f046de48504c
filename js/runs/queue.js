// @ts-check
/** What ComfyUI's queue holds of our trainings: what runs, what waits for what, and when each ends. */

import { html } from "../panel/dom.js";
import { formatDuration } from "../panel/format.js";
import { t } from "./texts.js";

/**
 * @typedef {object} Training
 * @property {string} name
 * @property {number} steps 0 unknown
 * @property {number | null} seconds that it still takes, null unknown
 *
 * @typedef {object} Queued a prompt of ComfyUI's queue
 * @property {string} promptId
 * @property {boolean} runs
 * @property {Training[]} trainings none of one that only generates
 *
 * @typedef {{ promptId: string, runs: boolean, name: string, text: string }} Line
 */

const OTHER = t("a prompt without training");
const UNNAMED = t("a training");

/** @param {any} payload @returns {Queued[]} */
export function toQueue(payload) {
  return (Array.isArray(payload?.queue) ? payload.queue : []).map((/** @type {any} */ each) => ({
    promptId: String(each?.prompt_id ?? ""),
    runs: each?.runs === true,
    trainings: (Array.isArray(each?.trainings) ? each.trainings : []).map((/** @type {any} */ one) => ({
      name: String(one?.name || t(UNNAMED)),
      steps: Number(one?.steps) || 0,
      seconds: Number.isFinite(one?.seconds) ? one.seconds : null,
    })),
  }));
}

/**
 * A line for each prompt that trains. When it ends is said only where all before it is known.
 *
 * @param {readonly Queued[]} queue in its order
 * @param {(seconds: number) => string} clock the time of day so many seconds from now
 * @returns {Line[]}
 */
export function queueLines(queue, clock) {
  /** @type {number | null} */
  let end = 0;
  const before = /** @type {string[]} */ ([]);
  const lines = /** @type {Line[]} */ ([]);
  for (const { promptId, runs, trainings } of queue) {
    const name = trainings.map((each) => each.name).join(", ");
    for (const { seconds } of trainings) end = end === null || seconds === null ? null : end + seconds;
    if (!trainings.length) end = null;
    const steps = trainings.reduce((sum, each) => sum + each.steps, 0);
    const known = trainings.length > 0 && trainings.every((each) => each.steps > 0);
    const text = [
      known ? t("{count} steps", { count: steps }) : "",
      runs ? t("runs") : waitText(before),
      end === null ? "" : t("ends {time}, in {duration}", { time: clock(end), duration: formatDuration(end) }),
    ];
    if (trainings.length) lines.push({ promptId, runs, name, text: text.filter(Boolean).join(", ") });
    before.push(name || t(OTHER));
  }
  return lines;
}

/** @param {readonly string[]} before what has to end first */
function waitText([name, ...others]) {
  if (!name) return t("waits");
  return others.length ? t("waits for {name} and {count} more", { name, count: others.length }) : t("waits for {name}", { name });
}

export class QueueView {
  /** @param {(promptId: string) => void} cancel takes one that waits out of the queue */
  constructor(cancel) {
    this.cancel = cancel;
    this.drawn = "";
    this.list = html("ul", "runs-queued", { "aria-label": t("Trainings in ComfyUI's queue") });
    this.element = html("div", "runs-queue", {}, [html("div", "runs-heading", {}, [t("Queue")]), this.list]);
    this.element.hidden = true;
  }

  /** @param {readonly Queued[]} queue */
  draw(queue) {
    const lines = queueLines(queue, timeOfDay);
    this.element.hidden = lines.length === 0;
    const drawn = JSON.stringify(lines);
    if (drawn === this.drawn) return;
    this.drawn = drawn;
    const focused = document.activeElement?.getAttribute("data-prompt");
    this.list.replaceChildren(...lines.map(({ promptId, runs, name, text }) => {
      const item = html("li", "runs-waiting", {}, [html("span", "", {}, [html("b", "", {}, [name]), ` ${text}`])]);
      if (runs) return item;
      const title = t("Takes it out of ComfyUI's queue; what trains is left alone");
      const button = html("button", "runs-action", { type: "button", title, "aria-label": t("Cancel {name}", { name }), "data-prompt": promptId }, [t("Cancel")]);
      button.addEventListener("click", () => this.cancel(promptId));
      item.append(button);
      return item;
    }));
    if (focused) /** @type {HTMLElement | null} */ (this.list.querySelector(`[data-prompt="${CSS.escape(focused)}"]`))?.focus();
  }
}

/** @param {number} seconds from now */
function timeOfDay(seconds) {
  const at = new Date(Date.now() + seconds * 1000);
  const time = at.toLocaleTimeString([], { hour: "2-digit", minute: "2-digit" });
  return at.toDateString() === new Date().toDateString() ? t("at {time}", { time }) : t("on {date} at {time}", { date: at.toLocaleDateString(), time });
}
