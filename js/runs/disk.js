// @ts-check
/** What a run takes on the disk, what of it can be cleaned up, and what can be put back. */

import { html, setText } from "../panel/dom.js";
import { t } from "./texts.js";

/**
 * @typedef {"checkpoints" | "samples" | "run"} Part
 * @typedef {{ count: number, bytes: number }} Use
 * @typedef {Record<"checkpoints" | "samples" | "adapters" | "rest", Use>} Disk
 * @typedef {{ id: string, run: string, parts: Part[], bytes: number }} Trashed
 */

const NAMES = { checkpoints: t("Checkpoints"), samples: t("Images"), adapters: t("Adapters"), rest: t("Curves, settings, notes and other files") };
const WHOLE = t("The run as a whole");
const CHOOSE = t("Choose what to clean up.");
const KEPT = t("What is cleaned up can be put back until ComfyUI closes. It takes its room until then.");
/** @type {Record<Part, string>} */
const TRASHED = { checkpoints: t("checkpoints"), samples: t("images"), run: t("the run as a whole") };
/** A translation says it in a form that holds for every number. @type {Record<string, (count: number) => string>} */
const COUNTED = {
  adapters: (count) => (count === 1 ? t("1 adapter") : t("{count} adapters", { count })),
  checkpoints: (count) => (count === 1 ? t("1 checkpoint") : t("{count} checkpoints", { count })),
  samples: (count) => (count === 1 ? t("1 image") : t("{count} images", { count })),
};
const UNITS = ["bytes", "kB", "MB", "GB", "TB"];

/** @param {number} bytes @returns {string} `4.2 GB` */
export function formatBytes(bytes) {
  let at = 0;
  let size = bytes;
  for (; size >= 999.5 && at < UNITS.length - 1; at++) size /= 1000;
  return `${at ? Number(size.toPrecision(size < 100 ? 2 : 3)) : size} ${UNITS[at]}`;
}

/** @param {any} payload @returns {Disk | null} null of a run whose disk is not known, such as one that trains */
export function toDisk(payload) {
  const use = (/** @type {any} */ each) => ({ count: Number(each?.count) || 0, bytes: Number(each?.bytes) || 0 });
  if (!payload?.rest) return null;
  return { checkpoints: use(payload.checkpoints), samples: use(payload.samples), adapters: use(payload.adapters), rest: use(payload.rest) };
}

/** @param {any} payload @returns {Trashed[]} */
export function toTrash(payload) {
  return (Array.isArray(payload?.trash) ? payload.trash : []).map((/** @type {any} */ each) => ({
    id: String(each?.id ?? ""), run: String(each?.run ?? ""), bytes: Number(each?.bytes) || 0,
    parts: (Array.isArray(each?.parts) ? each.parts : []).filter((/** @type {string} */ part) => part in TRASHED),
  }));
}

/** @param {Disk} disk */
export function totalOf(disk) {
  return Object.values(disk).reduce((sum, each) => sum + each.bytes, 0);
}

/**
 * What is lost, in words.
 *
 * @param {Disk} disk
 * @param {readonly Part[]} parts
 * @returns {string}
 */
export function lossOf(disk, parts) {
  const { checkpoints, samples, adapters } = disk;
  if (parts.includes("run")) {
    const names = [COUNTED.adapters(adapters.count), COUNTED.checkpoints(checkpoints.count), COUNTED.samples(samples.count)];
    return t("The run as a whole, {size}: {parts}, its curves, settings and notes.", { size: formatBytes(totalOf(disk)), parts: names.join(", ") });
  }
  const told = [];
  if (parts.includes("checkpoints")) {
    const kept = adapters.count ? t("the adapter stays") : t("its adapter is in them alone, and goes with them");
    told.push(t("{parts}, {size}; {kept}; it cannot be continued then.", { parts: COUNTED.checkpoints(checkpoints.count), size: formatBytes(checkpoints.bytes), kept }));
  }
  if (parts.includes("samples")) told.push(`${COUNTED.samples(samples.count)}, ${formatBytes(samples.bytes)}.`);
  return told.join(" ") || t(CHOOSE);
}

/**
 * @param {Disk} disk
 * @param {boolean} open
 * @param {(parts: Part[]) => void} clean
 * @returns {HTMLDetailsElement}
 */
export function diskView(disk, open, clean) {
  /** @type {Record<string, HTMLInputElement>} */
  const boxes = {};
  const loss = html("p", "runs-loss", { "aria-live": "polite" });
  const button = html("button", "runs-action", { type: "button", title: t(KEPT) });
  const chosen = () => /** @type {Part[]} */ (Object.keys(boxes).filter((part) => boxes[part].checked));
  const draw = () => {
    const parts = chosen();
    const bytes = parts.includes("run") ? totalOf(disk) : parts.reduce((sum, part) => sum + disk[/** @type {"samples"} */ (part)].bytes, 0);
    for (const part of ["checkpoints", "samples"]) if (boxes[part]) boxes[part].disabled = parts.includes("run");
    setText(loss, lossOf(disk, parts));
    setText(button, t("Clean up {size}", { size: formatBytes(bytes) }));
    button.disabled = parts.length === 0;
  };
  const row = (/** @type {string} */ part, /** @type {string} */ label, /** @type {string} */ size) => {
    const box = html("input", "", { type: "checkbox", value: part });
    box.addEventListener("change", draw);
    boxes[part] = box;
    return html("label", "runs-part", {}, [box, label, html("span", "runs-size", {}, [size])]);
  };
  const rows = /** @type {(keyof Disk)[]} */ (["checkpoints", "samples", "adapters", "rest"]).filter((part) => disk[part].count > 0).map((part) => {
    const size = `${part === "rest" ? "" : `${disk[part].count}, `}${formatBytes(disk[part].bytes)}`;
    const cleanable = part === "checkpoints" || part === "samples";
    return cleanable ? row(part, t(NAMES[part]), size) : html("div", "runs-part", {}, [t(NAMES[part]), html("span", "runs-size", {}, [size])]);
  });
  button.addEventListener("click", () => clean(chosen()));
  const view = html("details", "runs-disk", {}, [
    html("summary", "", {}, [t("Disk: {size}", { size: formatBytes(totalOf(disk)) })]),
    ...rows, row("run", t(WHOLE), formatBytes(totalOf(disk))), loss, button,
  ]);
  view.open = open;
  draw();
  return view;
}

export class TrashView {
  /** @param {{ restore: (id: string) => void, empty: () => void }} actions */
  constructor({ restore, empty }) {
    this.restore = restore;
    this.list = html("ul", "runs-queued", { "aria-label": t("What was cleaned up") });
    this.emptier = html("button", "runs-action", { type: "button", title: t("Removes it for good, and frees its room now") });
    this.emptier.addEventListener("click", empty);
    this.element = html("div", "runs-trash", {}, [html("div", "runs-heading", {}, [t("Cleaned up")]), html("p", "runs-loss", {}, [t(KEPT)]), this.list, this.emptier]);
    this.draw([]);
  }

  /** @param {readonly Trashed[]} trash */
  draw(trash) {
    this.element.hidden = trash.length === 0;
    setText(this.emptier, t("Empty the trash, {size}", { size: formatBytes(trash.reduce((sum, each) => sum + each.bytes, 0)) }));
    this.list.replaceChildren(...trash.map(({ id, run, parts, bytes }) => {
      const what = parts.map((part) => t(TRASHED[part])).join(t(" and "));
      const button = html("button", "runs-action", { type: "button", "aria-label": t("Undo: {run}, {parts}", { run, parts: what }) }, [t("Undo")]);
      button.addEventListener("click", () => this.restore(id));
      return html("li", "runs-waiting", {}, [html("span", "", {}, [html("b", "", {}, [run]), ` ${what}, ${formatBytes(bytes)}`]), button]);
    }));
  }
}
