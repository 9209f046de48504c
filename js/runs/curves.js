// @ts-check
/** What can be drawn of a run: loss and learning rate, which are at hand, and what the server is asked for. */

import { emptySeries, extend, lastStep } from "../panel/series.js";
import { t } from "./texts.js";

/**
 * @typedef {import("../panel/series.js").Bucket} Bucket
 * @typedef {import("../panel/series.js").Series} Series
 * @typedef {import("../panel/run.js").Run} Run
 *
 * @typedef {object} Curve
 * @property {string} name the server's
 * @property {string} label
 * @property {number} smoothing 0 for what does not jump from step to step
 */

/** @type {readonly Curve[]} */
export const CURVES = [
  { name: "loss", label: t("Loss"), smoothing: 0.9 },
  { name: "learning_rate", label: t("Learning rate"), smoothing: 0 },
  { name: "grad_norm", label: t("Gradient norm"), smoothing: 0 },
  { name: "norms", label: t("Adapter beside the base"), smoothing: 0 },
  { name: "step_seconds", label: t("Seconds a step"), smoothing: 0.9 },
  { name: "memory", label: t("Memory in MiB"), smoothing: 0 },
];

export class CurveStore {
  /** @param {import("./server.js").RunsServer} server */
  constructor(server) {
    this.server = server;
    /** By run and name. @type {Map<string, { course: string, series: Series, changed: number }>} */
    this.known = new Map();
  }

  /**
   * Of a run that goes on only what is new is asked for.
   *
   * @param {import("./rows.js").Row} row
   * @param {Run} run
   * @param {string} name
   * @returns {Promise<readonly Bucket[]>} the curve's values stand as `loss`
   */
  async of(row, run, name) {
    if (name === "loss") return run.series.buckets;
    if (name === "learning_rate") return run.series.buckets.flatMap((bucket) => rateOf(bucket));
    const key = `${row.run} ${name}`;
    const known = this.known.get(key);
    if (known && known.changed === row.changed && row.status !== "running") return known.series.buckets;
    const { points, course, follows } = await this.server.curve(row.run, name, known ? lastStep(known.series) : 0, known?.course ?? "");
    const before = known && follows ? known.series : emptySeries(row.steps);
    const series = extend(before, { stride: 1, buckets: toBuckets(points) });
    this.known.set(key, { course, series, changed: row.changed });
    return series.buckets;
  }
}

/** @param {Bucket} bucket @returns {Bucket[]} */
function rateOf(bucket) {
  const { rate } = bucket;
  return rate === null ? [] : [{ ...bucket, loss: rate, low: rate, high: rate }];
}

/** @param {unknown} points [step, mean, lowest, highest, count] by rising step @returns {Bucket[]} */
export function toBuckets(points) {
  return (Array.isArray(points) ? points : [])
    .filter((point) => Array.isArray(point) && point.length === 5 && point.every(Number.isFinite))
    .map(([step, loss, low, high, count]) => ({ step, loss, low, high, rate: null, count }));
}
