// @ts-check
/**
 * What the panel knows of one run: pure functions from a run and a message to the next run.
 * Every message is checked here, so that the drawing code meets only the types below.
 *
 * @typedef {import("./series.js").Series} Series
 * @typedef {"idle" | "caching" | "loading" | "training" | "done" | "stopped" | "cancelled" | "failed" | "lost"} Status
 *
 * @typedef {object} Sample an image that ComfyUI's /view serves
 * @property {number} step
 * @property {number} index which preview prompt, from 0
 * @property {string} prompt its text, empty where it is not known
 * @property {string} filename
 * @property {string} subfolder
 * @property {string} type
 *
 * @typedef {object} MemoryRow one way to keep a run in memory
 * @property {string} format of the base's blocks
 * @property {number} swapped how many of them are off the device
 * @property {string} master where those lie
 * @property {number} checkpointed how many compute their activations again
 * @property {string} inputs where those blocks' inputs are kept
 * @property {number} deviceBytes
 * @property {number} ramBytes
 * @property {number | null} seconds of a step
 *
 * @typedef {object} Memory
 * @property {number} blocks of the base, 0 when unknown
 * @property {number} deviceFree
 * @property {number} ramFree
 * @property {MemoryRow[]} rows the one that is taken, and then the next best
 *
 * @typedef {object} Choice what a preset chose
 * @property {string} setting
 * @property {string} value
 * @property {string} why
 *
 * @typedef {object} Advice what is wrong with a run, and the remedy
 * @property {string} name of the fault
 * @property {string} message
 * @property {string} setting its path, or `checkpoint`
 * @property {number} value
 *
 * @typedef {object} HeldOut losses on images that are not trained, and on as many that are
 * @property {number} step 0 before training
 * @property {number} loss
 * @property {number | null} trained
 *
 * @typedef {object} Run
 * @property {string} promptId
 * @property {string} name
 * @property {string} version name and version, such as `my_adapter/v0`; empty before it has one
 * @property {number | null} seed that decides which run it is
 * @property {boolean} resumable whether there is a checkpoint that it can go on from
 * @property {Status} status
 * @property {[number, number] | null} encoded how many images and captions of how many
 * @property {number} step
 * @property {number} steps
 * @property {Series} series
 * @property {HeldOut[]} heldOut by rising step
 * @property {Sample[]} samples by step, then prompt
 * @property {number | null} stepSeconds
 * @property {number | null} secondsLeft
 * @property {string} message
 * @property {string[]} warnings
 * @property {string[]} notes what is good to know
 * @property {Advice[]} advice
 * @property {import("../errors/error_view.js").NodeError | null} error
 * @property {import("../errors/error_view.js").NodeError | null} refused why these settings did not begin a run since
 * @property {Memory | null} memory
 * @property {string[]} layers each kind of layer with an adapter
 * @property {Choice[]} choices
 * @property {number} returns how often it has gone back to an older state
 */

import { toError } from "../errors/error_view.js";
import { append, emptySeries, extend } from "./series.js";

/** Of the ways to keep a run in memory: the one that is taken and the next two. */
const MEMORY_ROWS = 3;

/** A run keeps at most this many images' names; beyond it, steps in the middle are thinned. */
export const MAX_SAMPLES = 600;

const STATUSES = new Set([
  "caching", "loading", "training", "done", "stopped", "cancelled", "failed", "lost",
]);

/** @type {Readonly<Run>} */
export const NO_RUN = Object.freeze({
  promptId: "",
  name: "",
  version: "",
  seed: null,
  resumable: false,
  status: "idle",
  encoded: null,
  step: 0,
  steps: 0,
  series: emptySeries(0),
  heldOut: [],
  samples: [],
  stepSeconds: null,
  secondsLeft: null,
  message: "",
  warnings: [],
  notes: [],
  advice: [],
  error: null,
  refused: null,
  memory: null,
  layers: [],
  choices: [],
  returns: 0,
});

/**
 * @param {Run} run
 * @returns {boolean} whether something is being computed for it right now
 */
export function isActive(run) {
  return run.status === "caching" || run.status === "loading" || run.status === "training";
}

/**
 * The run of a snapshot. What the run before it knew beyond the snapshot's end stays if it is
 * the same run: messages may have overtaken the snapshot.
 *
 * @param {unknown} payload
 * @param {Run} [before]
 * @returns {Run | null} null when the payload is not a snapshot
 */
export function fromSnapshot(payload, before = NO_RUN) {
  const message = record(payload);
  if (!STATUSES.has(/** @type {string} */ (message.status))) return null;
  const same = before.promptId === text(message.prompt_id) && before.status !== "idle";
  // What was sent before the run went back, and came later.
  if (same && returnsOf(message) < before.returns) return before;
  const steps = natural(message.steps) ?? 0;
  /** @type {Run} */
  let run = {
    ...NO_RUN,
    ...progressFields(message, { ...NO_RUN, steps }),
    promptId: text(message.prompt_id),
    name: text(message.name),
    version: text(message.run),
    seed: natural(message.seed),
    resumable: message.resumable === true,
    steps,
    series: append(emptySeries(steps), message.points),
    heldOut: withHeldOut([], message.held_out),
    warnings: texts(message.warnings),
    notes: texts(message.notes),
    advice: toAdvice(message.advice),
    error: toError(message.error),
    refused: toError(message.refused),
    memory: toMemory(message.memory),
    layers: texts(message.layers),
    choices: toChoices(message.choices),
  };
  // Of a course that was given up nothing stays.
  if (same && before.returns === run.returns) {
    run.series = extend(run.series, before.series);
    const last = run.heldOut.at(-1)?.step ?? -1;
    run.heldOut = [...run.heldOut, ...before.heldOut.filter((each) => each.step > last)];
    for (const sample of before.samples) run = withSample(run, sample);
  }
  if (Array.isArray(message.samples)) {
    for (const sample of message.samples) run = withSample(run, sample);
  }
  return run;
}

/**
 * @param {Run} run
 * @param {unknown} payload
 * @returns {Run}
 */
export function withProgress(run, payload) {
  const message = record(payload);
  if (returnsOf(message) < run.returns) return run;
  // A snapshot that tells what is left of the course before follows.
  const gone = returnsOf(message) > run.returns;
  return {
    ...run,
    ...progressFields(message, run),
    series: append(gone ? emptySeries(run.steps) : run.series, message.points),
    heldOut: withHeldOut(gone ? [] : run.heldOut, message.held_out),
    samples: gone ? [] : run.samples,
  };
}

/**
 * The measurement that is best: the lowest loss on held-out images behind a step.
 *
 * @param {readonly HeldOut[]} heldOut
 * @returns {HeldOut | null}
 */
export function bestOf(heldOut) {
  /** @type {HeldOut | null} */
  let best = null;
  for (const each of heldOut) {
    if (each.step > 0 && (best === null || each.loss < best.loss)) best = each;
  }
  return best;
}

/**
 * @param {readonly HeldOut[]} known by rising step
 * @param {unknown} added [step, loss, loss of trained images or null] triples
 * @returns {HeldOut[]} those that are later than the last one are added
 */
function withHeldOut(known, added) {
  const all = [...known];
  for (const each of Array.isArray(added) ? added : []) {
    const [step, loss, trained] = Array.isArray(each) ? each : [];
    const last = all.at(-1)?.step ?? -1;
    if (natural(step) === null || step <= last || !Number.isFinite(loss)) continue;
    all.push({ step, loss, trained: Number.isFinite(trained) ? trained : null });
  }
  return all;
}

/**
 * @param {Run} run
 * @param {unknown} payload
 * @returns {Run} with the image in its place; an image of the same step and prompt is replaced
 */
export function withSample(run, payload) {
  const sample = toSample(payload);
  if (!sample) return run;
  const others = run.samples.filter(
    (other) => other.step !== sample.step || other.index !== sample.index,
  );
  const samples = [...others, sample].sort((a, b) => a.step - b.step || a.index - b.index);
  return { ...run, samples: thinSamples(samples) };
}

/**
 * Every second step is dropped until the images are few enough; the first step, which is before
 * training, and the last one always stay.
 *
 * @param {Sample[]} samples by step
 * @returns {Sample[]}
 */
function thinSamples(samples) {
  let kept = samples;
  while (kept.length > MAX_SAMPLES) {
    const steps = [...new Set(kept.map((sample) => sample.step))];
    if (steps.length < 3) return kept.slice(0, MAX_SAMPLES);
    const stay = new Set(steps.filter((_, i) => i === 0 || (steps.length - 1 - i) % 2 === 0));
    kept = kept.filter((sample) => stay.has(sample.step));
  }
  return kept;
}

/**
 * @param {Record<string, unknown>} message
 * @param {Run} run whose values stay where the message says nothing
 */
function progressFields(message, run) {
  const status = /** @type {Status} */ (message.status);
  const stepSeconds = positive(message.step_seconds);
  return {
    status: STATUSES.has(status) ? status : run.status,
    step: natural(message.step) ?? run.step,
    steps: natural(message.steps) ?? run.steps,
    encoded: toPair(message.encoded),
    stepSeconds,
    // Before the first step both are zero, which nobody should read as "done at once".
    secondsLeft: stepSeconds === null ? null : positive(message.seconds_left, 0),
    message: text(message.message),
    returns: returnsOf(message),
  };
}

/** @param {Record<string, unknown>} message */
function returnsOf(message) {
  return natural(message.returns) ?? 0;
}

/** @param {unknown} value @returns {[number, number] | null} */
function toPair(value) {
  const [done, total] = (Array.isArray(value) ? value : []).map(natural);
  return typeof done === "number" && total ? [done, total] : null;
}

/**
 * @param {unknown} payload
 * @returns {Sample | null}
 */
export function toSample(payload) {
  const message = record(payload);
  const step = natural(message.step);
  const filename = text(message.filename);
  if (step === null || !filename) return null;
  return {
    step,
    index: natural(message.index) ?? 0,
    prompt: text(message.prompt),
    filename,
    subfolder: text(message.subfolder),
    type: text(message.type) || "output",
  };
}

/**
 * @param {unknown} payload
 * @returns {Memory | null}
 */
function toMemory(payload) {
  const message = record(payload);
  if (!Array.isArray(message.rows) || message.rows.length === 0) return null;
  return {
    blocks: natural(message.blocks) ?? 0,
    deviceFree: natural(message.device_free) ?? 0,
    ramFree: natural(message.ram_free) ?? 0,
    rows: message.rows.slice(0, MEMORY_ROWS).map(record).map((row) => ({
      format: text(row.base_format),
      swapped: natural(row.blocks_to_swap) ?? 0,
      master: text(row.master),
      checkpointed: natural(row.blocks_to_checkpoint) ?? 0,
      inputs: text(row.checkpoint_inputs),
      deviceBytes: natural(row.device_bytes) ?? 0,
      ramBytes: natural(row.ram_bytes) ?? 0,
      seconds: positive(row.seconds),
    })),
  };
}

/**
 * @param {unknown} payload
 * @returns {Advice[]} one of each name
 */
function toAdvice(payload) {
  const rows = (Array.isArray(payload) ? payload : []).map(record).flatMap(({ name, message, setting, value }) =>
    typeof value === "number" && text(name) && typeof setting === "string"
      ? [{ name: text(name), message: text(message), setting: text(setting), value }]
      : [],
  );
  return [...new Map(rows.map((row) => [row.name, row])).values()];
}

/**
 * @param {unknown} payload
 * @returns {Choice[]}
 */
function toChoices(payload) {
  if (!Array.isArray(payload)) return [];
  const rows = payload.map(record).map(({ setting, value, why }) => ({
    setting: text(setting), value: text(value), why: text(why),
  }));
  return rows.filter((row) => row.setting);
}

/**
 * @param {unknown} value
 * @returns {Record<string, unknown>}
 */
function record(value) {
  return value !== null && typeof value === "object"
    ? /** @type {Record<string, unknown>} */ (value)
    : {};
}

/** @param {unknown} value */
function natural(value) {
  return typeof value === "number" && Number.isInteger(value) && value >= 0 ? value : null;
}

/**
 * @param {unknown} value
 * @param {number} [least] smallest sensible value
 */
function positive(value, least = 1e-9) {
  return typeof value === "number" && Number.isFinite(value) && value >= least ? value : null;
}

/** @param {unknown} value */
function texts(value) {
  return Array.isArray(value) ? value.map(text).filter(Boolean) : [];
}

/** @param {unknown} value */
function text(value) {
  return typeof value === "string" ? value : "";
}
