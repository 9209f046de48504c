// @ts-check
/** The whole panel: one element, drawn from a run by `show`, at most once for each screen refresh. */

import { AdviceView } from "./advice_view.js";
import { ChartView } from "./chart_view.js";
import { ChoicesView } from "./choices_view.js";
import { Controls, DEFAULT_LOOK } from "./controls.js";
import { html, setText } from "./dom.js";
import { ErrorView } from "../errors/error_view.js";
import { formatNumber } from "./format.js";
import { Lightbox } from "./lightbox.js";
import { MemoryView } from "./memory_view.js";
import { NotesView } from "./notes_view.js";
import { NO_RUN, bestOf } from "./run.js";
import { SamplesView } from "./samples_view.js";
import { smooth } from "./series.js";
import { StatusView } from "./status_view.js";
import { ActionBar } from "./action_bar.js";

/**
 * @typedef {import("./run.js").Run} Run
 * @typedef {import("./server.js").RunRequest} RunRequest
 * @typedef {import("./controls.js").Look} Look
 */

/** @type {Record<Run["status"], string>} */
const EMPTY = {
  idle: "When this node runs, the loss curve, the learning rate and sample images appear here.",
  caching: "The images and captions are being encoded. The loss curve follows.",
  loading: "The base is being loaded. The loss curve follows; of a run that goes on, all of it.",
  training: "Waiting for the first step.",
  done: "There are no losses to show.",
  stopped: "There are no losses to show.",
  cancelled: "It was cancelled before the first step.",
  failed: "It failed before the first step.",
  lost: "There are no losses to show.",
};

export class TrainPanel {
  /**
   * @param {object} host
   * @param {(request: RunRequest) => Promise<{ taken: boolean, reason: string }>} host.ask
   * @param {(more: number | null) => Promise<{ taken: boolean, reason: string }>} host.goOn queues
   *   the graph, for so many more steps or to the planned end
   * @param {(sample: import("./run.js").Sample, thumbnail: boolean) => string} host.imageUrl
   * @param {import("./advice_view.js").Apply} [host.apply] does what an advice names
   * @param {(look: Look) => void} host.onLook told what the reader chose
   * @param {import("../errors/error_view.js").Inputs} [host.inputs] of the panel's node
   */
  constructor({ ask, goOn, imageUrl, onLook, inputs, apply = async () => "" }) {
    /** @type {Run} */
    this.run = NO_RUN;
    this.offline = false;
    /** @type {Look} */
    this.look = DEFAULT_LOOK;
    this.pointed = -1;
    this.frame = 0;
    /** @type {ResizeObserver | null} */
    this.observer = null;

    this.status = new StatusView();
    this.error = new ErrorView(inputs);
    /** What went wrong before there was a run. @type {import("../errors/error_view.js").NodeError | null} */
    this.told = null;
    this.advice = new AdviceView(apply);
    this.notes = new NotesView("notes", (count) => (count === 1 ? "1 note" : `${count} notes`));
    this.layers = new NotesView("layers", () => "Layers with an adapter");
    this.memory = new MemoryView();
    this.choices = new ChoicesView();
    this.empty = html("p", "empty");
    this.readout = html("div", "readout");
    this.chart = new ChartView((index) => this.readAt(index));
    this.plot = html("div", "plot", {}, [this.chart.element, this.empty]);
    const choose = (/** @type {Partial<Look>} */ change) => {
      this.setLook({ ...this.look, ...change });
      onLook(this.look);
    };
    this.controls = new Controls(choose);
    this.lightbox = new Lightbox(imageUrl);
    this.samples = new SamplesView(
      imageUrl,
      (sample) => this.lightbox.open(sample, this.run.samples),
      (large) => choose({ large }),
    );
    this.actions = new ActionBar(ask, goOn);
    this.element = html("section", "panel", { "aria-label": "Training panel" }, [
      this.status.element,
      this.error.element,
      this.advice.element,
      html(
        "div",
        "folds",
        {},
        [this.notes, this.memory, this.choices, this.layers].map((view) => view.element),
      ),
      this.plot,
      this.readout,
      this.controls.element,
      this.samples.element,
      this.actions.element,
    ]);
    this.element.addEventListener("keydown", keepKey);
    this.draw();
  }

  /** Begins to follow the element's size. */
  connect() {
    if (this.observer) return;
    this.observer = new ResizeObserver(() => this.schedule());
    this.observer.observe(this.plot);
    this.schedule();
  }

  /** Lets go of everything outside the element. */
  disconnect() {
    this.observer?.disconnect();
    this.observer = null;
    cancelAnimationFrame(this.frame);
    this.frame = 0;
    this.lightbox.close();
    this.actions.say("");
  }

  /**
   * @param {Run} run
   * @param {boolean} offline whether the connection to the server is down
   */
  show(run, offline) {
    this.run = run;
    this.offline = offline;
    this.schedule();
  }

  /** @param {import("../errors/error_view.js").NodeError | null} error */
  tell(error) {
    this.told = error;
    this.schedule();
  }

  /** @param {Look} look */
  setLook(look) {
    this.look = look;
    this.schedule();
  }

  schedule() {
    if (this.frame) return;
    this.frame = requestAnimationFrame(() => {
      this.frame = 0;
      this.draw();
    });
  }

  draw() {
    const { run, offline } = this;
    const refused = this.told ?? run.refused;
    this.status.draw(run, offline, refused !== null);
    this.error.draw(refused ?? run.error);
    this.advice.draw(run);
    this.notes.draw(run.notes);
    this.memory.draw(run.memory);
    this.layers.draw(run.layers);
    this.choices.draw(run.choices);
    this.actions.draw(run, offline);
    this.samples.draw(run.samples, this.look.large);
    this.lightbox.update(run.samples);
    this.controls.draw(this.look);

    const { buckets } = run.series;
    const drawn = buckets.length > 0;
    this.empty.hidden = drawn;
    setText(this.empty, (run.status === "idle" && run.message) || EMPTY[run.status]);
    this.chart.element.style.display = drawn ? "" : "none";
    // Large samples need the room more than the curve's details do.
    const details = drawn && !(this.look.large && run.samples.length > 0);
    this.readout.hidden = !details;
    this.controls.element.hidden = !details;
    const size = { width: this.plot.clientWidth, height: this.plot.clientHeight };
    // Without a size (scrolled away, collapsed) the observer calls again when there is one.
    if (drawn && size.width > 0 && size.height > 0) {
      this.chart.draw(buckets, this.look, size, run.heldOut);
    }
    this.drawReadout();
  }

  /** @param {number} index of the bucket that the pointer is at, -1 for the last one */
  readAt(index) {
    this.pointed = index;
    this.drawReadout();
  }

  drawReadout() {
    const { buckets } = this.run.series;
    const at = this.pointed >= 0 && this.pointed < buckets.length ? this.pointed : buckets.length - 1;
    const bucket = buckets[at];
    if (!bucket) return;
    const losses = buckets.slice(0, at + 1).map((b) => b.loss);
    const smoothed = smooth(losses, this.look.smoothing)[at];
    const parts = [
      html("span", "", {}, [`step ${bucket.step}`]),
      html("span", "key-raw", {}, [`loss ${formatNumber(bucket.loss)}`]),
      html("span", "key-smoothed", {}, [`smoothed ${formatNumber(smoothed)}`]),
    ];
    if (this.look.showRate && bucket.rate !== null) {
      parts.push(html("span", "key-rate", {}, [`rate ${formatNumber(bucket.rate, 3)}`]));
    }
    const measured = this.run.heldOut.filter(({ step }) => step <= bucket.step).at(-1);
    if (measured) {
      const { step, loss, trained } = measured;
      const best = bestOf(this.run.heldOut)?.step === step ? " (best)" : "";
      parts.push(html("span", "key-held-out", {}, [`held out ${formatNumber(loss)}${best}`]));
      if (trained !== null) {
        parts.push(html("span", "key-trained", {}, [`trained ${formatNumber(trained)}`]));
      }
    }
    this.readout.replaceChildren(...parts);
  }
}

/**
 * Keys pressed inside the panel are not the graph's: Delete on a button must not delete the node.
 * Shortcuts with Ctrl, Alt or the command key go on to ComfyUI.
 *
 * @param {KeyboardEvent} event
 */
function keepKey(event) {
  if (!event.ctrlKey && !event.metaKey && !event.altKey) event.stopPropagation();
}
