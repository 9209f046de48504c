// @ts-check
/**
 * The list of runs: what the server says, checked, searched and sorted. Pure functions.
 *
 * @typedef {import("../panel/run.js").Sample} Sample
 *
 * @typedef {object} Notes what its user wrote about a run
 * @property {string} note
 * @property {string[]} tags
 * @property {boolean} favourite
 *
 * @typedef {Notes & { reason: string, run: string, status: string, step: number, steps: number, loss: number | null,
 *   changed: number, sample: Sample | null, bytes: number | null }} Row `reason` is why it cannot be read or has failed, `run` name and version, `changed` in seconds
 *   since 1970, `loss` the mean of the last steps, `bytes` on the disk where it was asked for
 *
 * @typedef {"newest" | "name" | "loss" | "size"} Order
 */

import { toSample } from "../panel/run.js";
import { t } from "./texts.js";

/** What a run's status is called. @type {Record<string, string>} */
export const STATUSES = {
  running: t("running"), done: t("done"), stopped: t("stopped"), cancelled: t("cancelled"), failed: t("failed"), lost: t("lost"),
  damaged: t("damaged"),
};

/** @param {unknown} payload @returns {Row[]} */
export function toRows(payload) {
  const runs = payload !== null && typeof payload === "object" && "runs" in payload ? payload.runs : [];
  return (Array.isArray(runs) ? runs : []).map(toRow).filter((row) => row.run);
}

/** @param {any} each @returns {Row} */
function toRow(each) {
  return {
    run: String(each?.run ?? ""),
    reason: String(each?.reason ?? ""),
    status: String(each?.status ?? ""),
    step: Number(each?.step) || 0,
    steps: Number(each?.steps) || 0,
    loss: Number.isFinite(each?.loss) ? each.loss : null,
    changed: Number(each?.changed) || 0,
    sample: toSample({ step: 0, ...each?.sample }),
    bytes: null,
    ...toNotes(each),
  };
}

/** @param {any} each @returns {Notes} */
export function toNotes(each) {
  return {
    note: String(each?.note ?? ""),
    tags: (Array.isArray(each?.tags) ? each.tags : []).map(String),
    favourite: each?.favourite === true,
  };
}

/**
 * Runs that have every word in name, status, tags or note.
 *
 * @param {readonly Row[]} rows
 * @param {string} query
 * @returns {Row[]}
 */
export function matching(rows, query) {
  const words = query.toLowerCase().split(/\s+/).filter(Boolean);
  return rows.filter((row) => {
    const text = [row.run, row.status, t(STATUSES[row.status] ?? ""), row.note, ...row.tags].join(" ").toLowerCase();
    return words.every((word) => text.includes(word));
  });
}

/**
 * @param {readonly Row[]} rows
 * @param {Order} order
 * @returns {Row[]} those that train first, then the favourites; runs without a loss come last by it
 */
export function sorted(rows, order) {
  const rank = (/** @type {Row} */ row) => (row.status === "running" ? 0 : row.favourite ? 1 : 2);
  const by = {
    newest: (/** @type {Row} */ a, /** @type {Row} */ b) => b.changed - a.changed,
    name: (/** @type {Row} */ a, /** @type {Row} */ b) => a.run.localeCompare(b.run, "en", { numeric: true }),
    loss: (/** @type {Row} */ a, /** @type {Row} */ b) => (a.loss ?? Infinity) - (b.loss ?? Infinity),
    size: (/** @type {Row} */ a, /** @type {Row} */ b) => (b.bytes ?? 0) - (a.bytes ?? 0),
  }[order];
  return [...rows].sort((a, b) => rank(a) - rank(b) || by(a, b) || 0);
}

/**
 * The settings in which runs differ.
 *
 * @param {readonly Record<string, unknown>[]} settings of each run, by path
 * @returns {[string, string[]][]} path, and its value in each run
 */
export function differences(settings) {
  const paths = [...new Set(settings.flatMap((each) => Object.keys(each)))].sort();
  return paths
    .map((path) => /** @type {[string, string[]]} */ ([path, settings.map((each) => shown(each[path]))]))
    .filter(([, values]) => new Set(values).size > 1);
}

/** @param {unknown} value */
function shown(value) {
  if (value === undefined || value === null) return "–";
  return typeof value === "string" ? value : JSON.stringify(value);
}
