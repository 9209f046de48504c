// @ts-check
/**
 * What was dropped, as files with their paths, and how they get to the server.
 *
 * @typedef {{ path: string, file: File }} Dropped
 * @typedef {{ name: string, reason: string }} LeftOut
 * @typedef {import("./server.js").DatasetServer} DatasetServer
 */

import { html } from "../panel/dom.js";
import { Refusal } from "./server.js";

const IMAGES = /\.(png|jpe?g|jpe|jfif|p?jpeg|pjp|webp|bmp|avif|hei[cf]|hif)$/i;
const CLIPS = /\.(mp4|mov|m4v|mkv|webm|avi|gif)$/i;
/** The server says of them why they are not read. */
const FOREIGN = /\.(tiff?|jxl|jp2|tga|apng)$/i;
const OTHERS = /\.(txt|caption|json|zip)$|(^|\/)metadata\.(jsonl|csv|parquet)$/i;

export const ACCEPTED =
  ".png,.jpg,.jpeg,.jfif,.webp,.bmp,.avif,.heic,.heif,.hif,.mp4,.mov,.m4v,.mkv,.webm,.avi,.gif,.txt,.caption,.json,.jsonl,.csv,.parquet,.zip";

const NOT_READ = "not an image, clip, caption or .zip that is read. Save an image as PNG or JPEG, a clip as MP4.";

/** @param {string} path whether it may belong to a dataset; what a system adds by itself does not */
export function isUsable(path) {
  return !isOfSystem(path) && [IMAGES, CLIPS, FOREIGN, OTHERS].some((each) => each.test(path));
}

/** @param {string} path */
function isOfSystem(path) {
  return path.split("/").some((part) => part.startsWith(".") || /^(__MACOSX|Thumbs\.db|desktop\.ini)$/i.test(part));
}

/** What cannot be used of some files, each with the reason. @param {Dropped[]} files @returns {LeftOut[]} */
export function notRead(files) {
  const others = files.filter(({ path }) => !isUsable(path) && !isOfSystem(path));
  return others.map(({ path }) => ({ name: path, reason: NOT_READ }));
}

/**
 * @param {Dropped[]} files
 * @param {number} most
 * @returns {HTMLElement[]} the images and clips among them, small, as they lie on the disk
 */
export function previews(files, most) {
  const shown = files.filter(({ path }) => IMAGES.test(path) || CLIPS.test(path));
  return shown.slice(0, most).map(({ path, file }) => {
    const source = { src: URL.createObjectURL(file) };
    const still = IMAGES.test(path) || /\.gif$/i.test(path);
    const image = still
      ? html("img", "", { ...source, alt: path })
      : html("video", "", { ...source, muted: "", "aria-label": path });
    const done = () => URL.revokeObjectURL(source.src);
    for (const event of ["load", "loadeddata", "error"]) image.addEventListener(event, done);
    return html("span", "dataset-image", { title: path }, [image]);
  });
}

/** @param {DataTransfer | null | undefined} transfer */
export function holdsFiles(transfer) {
  return [...(transfer?.items ?? [])].some((item) => item.kind === "file");
}

/**
 * The files of a drop, those in folders too. What a browser gives is gone after the event, so all of
 * it is taken hold of before anything is waited for.
 *
 * @param {DataTransfer} transfer
 * @returns {Promise<Dropped[]>}
 */
export async function filesOf(transfer) {
  const files = [...transfer.files];
  const entries = [...transfer.items]
    .filter((item) => item.kind === "file")
    .map((item) => item.webkitGetAsEntry?.());
  /** @type {Dropped[]} */
  const found = [];
  if (entries.some((entry) => entry?.isDirectory)) {
    for (const entry of entries) if (entry) await walk(entry, "", found);
  } else {
    found.push(...files.map((file) => ({ path: file.name, file })));
  }
  return found;
}

/**
 * @param {FileSystemEntry} entry
 * @param {string} before
 * @param {Dropped[]} found
 */
async function walk(entry, before, found) {
  const path = before + entry.name;
  if (entry.isDirectory) {
    const reader = /** @type {FileSystemDirectoryEntry} */ (entry).createReader();
    for (;;) {
      /** @type {FileSystemEntry[]} */
      const some = await new Promise((done, failed) => reader.readEntries(done, failed));
      if (!some.length) return;
      for (const each of some) await walk(each, `${path}/`, found);
    }
  }
  /** @type {File} */
  const file = await new Promise((done, failed) => {
    /** @type {FileSystemFileEntry} */ (entry).file(done, failed);
  });
  found.push({ path, file });
}

/**
 * A name for a new folder: that of the folder or archive that was dropped, else my_images.
 *
 * @param {Dropped[]} files
 * @param {string[]} taken names of folders below input
 */
export function suggestedName(files, taken) {
  const tops = new Set(files.map(({ path }) => path.split("/")[0]));
  const [top] = tops;
  const named = tops.size === 1 && (files[0].path.includes("/") || /\.zip$/i.test(top));
  const plain = named ? top.replace(/\.zip$/i, "").replace(/[^\p{L}\p{N} _-]+/gu, "_").trim() : "";
  const name = /^[\p{L}\p{N}]/u.test(plain) ? plain.slice(0, 60).trim() : "my_images";
  for (let number = 1; ; number += 1) {
    const tried = number === 1 ? name : `${name}_${number}`;
    if (!taken.includes(tried)) return tried;
  }
}

/**
 * Sends files one after another. Either all that can be read arrive, or nothing does.
 *
 * @param {DatasetServer} server
 * @param {Dropped[]} files
 * @param {import("./server.js").Place} place which may be another one in the end
 * @param {(done: number) => void} onProgress
 * @param {AbortSignal} signal
 * @returns {Promise<{ drop: string, refused: LeftOut[] }>}
 */
export async function send(server, files, place, onProgress, signal) {
  const { drop } = await server.begin(place);
  /** @type {LeftOut[]} */
  const refused = [];
  try {
    for (const [index, { path, file }] of files.entries()) {
      onProgress(index);
      signal.throwIfAborted();
      try {
        await server.file(drop, path, file, signal);
      } catch (error) {
        if (!(error instanceof Refusal && error.ofFile)) throw error;
        refused.push({ name: path, reason: error.message });
      }
    }
    onProgress(files.length);
    signal.throwIfAborted();
  } catch (error) {
    await server.cancel(drop).catch(() => {});
    throw error;
  }
  if (refused.length < files.length) return { drop, refused };
  await server.cancel(drop).catch(() => {});
  throw new Error(refused[0].reason);
}

const LEFT_OUT = "adapter_trainer.left_out.";

/**
 * Keeps what an upload did not take, so that it can still be read after a reload of the page.
 *
 * @param {string} folder
 * @param {LeftOut[]} left
 */
export function keepLeftOut(folder, left) {
  sessionStorage.setItem(LEFT_OUT + folder, JSON.stringify(left));
}

/** @param {string} folder @returns {LeftOut[]} */
export function keptLeftOut(folder) {
  try {
    return JSON.parse(sessionStorage.getItem(LEFT_OUT + folder) ?? "[]");
  } catch {
    return [];
  }
}
