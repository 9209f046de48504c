// @ts-check
/** The head of the panel: what is happening, how far it is, and what was warned of. */

import { html, setText } from "./dom.js";
import { formatDuration, formatNumber, formatStep, formatStepTime, UNKNOWN } from "./format.js";
import { isActive } from "./run.js";

/** @typedef {import("./run.js").Run} Run */

/** @type {Record<Run["status"], string>} */
export const STATUS_WORDS = {
  idle: "Not started",
  caching: "Encoding",
  loading: "Loading",
  training: "Training",
  done: "Done",
  stopped: "Stopped, kept",
  cancelled: "Cancelled",
  failed: "Failed",
  lost: "Interrupted",
};

/** What a later error is not about. */
const ENDED = ["done", "stopped", "cancelled"];

const STATS = /** @type {const} */ (["Step", "Loss", "Per step", "Left"]);

export class StatusView {
  constructor() {
    this.word = html("span", "word", { role: "status" });
    this.message = html("span", "message");
    this.runName = html("span", "run-name");
    this.number = html("span", "");
    this.version = html("span", "version", {}, [this.runName, this.number]);
    this.bar = html("progress", "bar", { max: "1", "aria-label": "Training progress" });
    this.values = STATS.map(() => html("dd", ""));
    const stats = STATS.map((name, i) => html("div", "", {}, [html("dt", "", {}, [name]), this.values[i]]));
    this.stats = html("dl", "stats", {}, stats);
    this.warningCount = html("summary", "");
    this.warningList = html("ul", "");
    this.warnings = html("details", "warnings", {}, [this.warningCount, this.warningList]);
    this.element = html("div", "status", {}, [
      html("div", "headline", {}, [
        html("span", "light", { "aria-hidden": "true" }), this.word, this.message, this.version,
      ]),
      this.bar,
      this.stats,
      this.warnings,
    ]);
  }

  /**
   * @param {Run} run
   * @param {boolean} offline
   * @param {boolean} [earlier] whether another run was asked for since, and did not begin
   */
  draw(run, offline, earlier = false) {
    const word = STATUS_WORDS[run.status];
    const over = earlier && ENDED.includes(run.status);
    this.element.dataset.status = offline ? "lost" : over ? "failed" : run.status;
    setText(this.word, offline ? "No connection" : over ? `Not started. Before: ${word}` : word);
    // Of a run that has not begun it stands where its curve will be.
    const known = run.status === "idle" ? "" : run.message;
    const message = offline ? "Waiting for the server." : known;
    setText(this.message, message);
    this.message.title = message;
    // A long name may be cut, the number never.
    const slash = Math.max(0, run.version.lastIndexOf("/"));
    setText(this.runName, run.version.slice(0, slash));
    setText(this.number, run.version.slice(slash));
    this.version.title = `The run and its version, in output/adapter_trainer: ${run.version}`;
    this.version.hidden = !run.version;
    const idle = run.status === "idle";
    // Encoding has a progress of its own; of the training nothing is known before it begins.
    const encoded = run.status === "caching" ? run.encoded : null;
    const [done, total] = encoded ?? [run.step, run.steps];
    this.bar.hidden = idle;
    this.stats.hidden = idle || encoded !== null;
    this.bar.ariaLabel = encoded ? "Encoding progress" : "Training progress";
    this.bar.value = total > 0 ? Math.min(1, done / total) : 0;
    const active = isActive(run);
    const texts = [
      formatStep(run.step, run.steps),
      formatNumber(run.series.buckets.at(-1)?.loss),
      formatStepTime(run.stepSeconds),
      active ? formatDuration(run.secondsLeft) : UNKNOWN,
    ];
    this.values.forEach((value, i) => setText(value, texts[i]));
    this.drawWarnings(run.warnings);
  }

  /** @param {string[]} warnings */
  drawWarnings(warnings) {
    this.warnings.hidden = warnings.length === 0;
    const count = warnings.length === 1 ? "1 warning" : `${warnings.length} warnings`;
    setText(this.warningCount, count);
    const shown = [...this.warningList.children].map((item) => item.textContent);
    if (shown.join("\n") === warnings.join("\n")) return;
    this.warningList.replaceChildren(...warnings.map((text) => html("li", "", {}, [text])));
  }
}
