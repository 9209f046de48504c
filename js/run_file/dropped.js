// @ts-check
/**
 * Run files that are dropped on the canvas, or opened as workflows are. ComfyUI gives each file to
 * `app.handleFile`; what is no run file goes on to it untouched.
 *
 * @typedef {import("../comfyui.js").App} App
 * @typedef {import("./open.js").Api} Api
 */

import { FORMATS, LARGEST, openIfRunFiles } from "./open.js";

/**
 * @param {Api} api
 * @param {App} app
 * @param {EventTarget} page where drops are heard before ComfyUI takes the files apart
 */
export function openDropped(api, app, page) {
  /** Those of the last drop, because some programs write a run into several files. */
  /** @type {File[]} */
  let together = [];
  /** Files that were read with one that came before them. @type {File[]} */
  let taken = [];
  page.addEventListener(
    "drop",
    (event) => {
      together = [.../** @type {DragEvent} */ (event).dataTransfer?.files ?? []];
      taken = [];
    },
    { capture: true },
  );

  const { handleFile } = app;
  app.handleFile = async function (file, ...rest) {
    const same = (/** @type {File} */ other) => isSame(file, other);
    if (taken.some(same)) {
      taken = taken.filter((each) => !same(each));
      return undefined;
    }
    const beside = together.some(same) ? together.filter((each) => !same(each)) : [];
    const asked = [file, ...beside].filter(mayBeRunFile);
    if (mayBeRunFile(file) && !(await isComfyUIs(file))) {
      const used = await openIfRunFiles(asked, api, app);
      if (used.includes(file.name)) {
        taken = beside.filter(({ name }) => used.includes(name));
        return undefined;
      }
    }
    return handleFile.call(this, file, ...rest);
  };
}

/** @param {{ name: string, size: number }} file */
function mayBeRunFile({ name, size }) {
  return size <= LARGEST && FORMATS.some((ending) => name.toLowerCase().endsWith(ending));
}

/**
 * @param {File} one
 * @param {File} other
 */
function isSame(one, other) {
  return ["name", "size", "lastModified"].every(
    (key) => /** @type {any} */ (one)[key] === /** @type {any} */ (other)[key],
  );
}

/**
 * Whether it is a workflow, a prompt of the API, or templates: nothing that the server need see.
 *
 * @param {{ name: string, text: () => Promise<string> }} file
 */
async function isComfyUIs(file) {
  if (!file.name.toLowerCase().endsWith(".json")) return false;
  try {
    const content = JSON.parse(await file.text());
    if (Array.isArray(content?.nodes) || Array.isArray(content?.templates)) return true;
    const parts = Object.values(content ?? {});
    return parts.length > 0 && parts.every((each) => each?.class_type && each.inputs);
  } catch {
    return false; // ComfyUI reads NaN as well; the server says what it is.
  }
}
