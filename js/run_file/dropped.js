// @ts-check
/**
 * Run files that are dropped on the canvas, or opened as workflows are. ComfyUI gives each file to
 * `app.handleFile`; what is not a run file goes on to it untouched.
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
  /** Of the last drop, what ComfyUI has not handed on yet: some programs write a run into several files. */
  /** @type {File[]} */
  let waiting = [];
  /** Those of them that were opened. @type {Promise<File[]> | null} */
  let opened = null;
  page.addEventListener(
    "drop",
    (event) => {
      waiting = [.../** @type {DragEvent} */ (event).dataTransfer?.files ?? []];
      opened = null;
    },
    { capture: true },
  );

  const { handleFile } = app;
  app.handleFile = async function (file, ...rest) {
    const same = (/** @type {File} */ other) => isSame(file, other);
    const used = waiting.some(same) ? (opened ??= open(waiting)) : open([file]);
    waiting = waiting.filter((each) => !same(each));
    if ((await used).some(same)) return undefined;
    return handleFile.call(this, file, ...rest);
  };

  /** @param {File[]} files @returns {Promise<File[]>} those that were run files */
  async function open(files) {
    const own = await Promise.all(files.map(mayBeRunFile));
    const asked = files.filter((_, at) => own[at]);
    const names = asked.length ? await openIfRunFiles(asked, api, app) : [];
    return asked.filter(({ name }) => names.includes(name));
  }
}

/** @param {{ name: string, size: number, text: () => Promise<string> }} file */
async function mayBeRunFile(file) {
  const named = FORMATS.some((ending) => file.name.toLowerCase().endsWith(ending));
  return named && file.size <= LARGEST && !(await isComfyUIs(file));
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
