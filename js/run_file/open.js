// @ts-check
/**
 * Lays out the nodes of a run file: of ours, or of another trainer. Which nodes and which values the
 * server says; the files' texts, or the name of a run, are all that it is given.
 *
 * @typedef {import("../comfyui.js").App} App
 * @typedef {{ fetchApi: (route: string, options?: RequestInit) => Promise<Response> }} Api
 * @typedef {import("./frames.js").Frame} Frame
 *
 * @typedef {object} RunFile what is read of a file
 * @property {string} name
 * @property {number} size
 * @property {() => Promise<string>} text
 *
 * @typedef {object} RunGraph
 * @property {string} program whose run file it is
 * @property {string[]} files the names of the files that it was read from
 * @property {Record<string, { class_type: string, inputs: Record<string, unknown> }>} nodes as in a
 *   prompt of the API
 * @property {Frame[]} frames
 * @property {boolean} connect whether it needs the graph's CLIP and VAE
 * @property {string[]} notes
 */

import { toldError } from "../errors/error_view.js";
import { build, settled } from "../quick/full_graph.js";
import { layOut } from "./frames.js";

export const LABEL = "Open run file as graph";
export const FORMATS = [".yaml", ".yml", ".toml", ".json", ".jsonc", ".txt", ".sh", ".bat", ".cmd", ".ps1"];
export const LARGEST = 2 ** 20;
const MOST_NOTES = 12;
const ROUTE = "/adapter_trainer/run_file_graph";

/**
 * Lets the user choose a file, or those that make a run together, and opens it.
 *
 * @param {Api} api
 * @param {App} app
 */
export function chooseRunFile(api, app) {
  const input = document.createElement("input");
  input.type = "file";
  input.multiple = true;
  input.accept = FORMATS.join(",");
  input.addEventListener("change", () => {
    const files = [...(input.files ?? [])];
    if (files.length) void openRunFiles(files, api, app);
  });
  input.click();
}

/**
 * @param {RunFile[]} files
 * @param {Api} api
 * @param {App} app
 */
export async function openRunFiles(files, api, app) {
  await telling(app, async () => {
    if (files.some(({ size }) => size > LARGEST)) throw new Error("The file is larger than any run file.");
    await show(await graphOf({ files: await texts(files) }, api), app);
  });
}

/**
 * @param {string} run as Load Run names it
 * @param {Api} api
 * @param {App} app
 */
export async function openRun(run, api, app) {
  await telling(app, async () => show(await graphOf({ run }, api), app));
}

/**
 * Opens what of some files is a run file.
 *
 * @param {RunFile[]} files
 * @param {Api} api
 * @param {App} app
 * @returns {Promise<string[]>} the names of the files that were used; none where none is a run file
 */
export async function openIfRunFiles(files, api, app) {
  /** @type {string[]} */
  let used = files.map(({ name }) => name);
  await telling(app, async () => {
    const wanted = await graphOf({ files: await texts(files), recognize: true }, api);
    used = wanted.program ? wanted.files : [];
    if (wanted.program) await show(wanted, app);
  });
  return used;
}

/** @param {RunFile[]} files */
function texts(files) {
  return Promise.all(files.map(async (file) => ({ name: file.name, text: await file.text() })));
}

/**
 * Puts the nodes below the others, as one step for Ctrl+Z.
 *
 * @param {RunGraph} wanted
 * @param {App} app
 */
async function show(wanted, app) {
  const graph = app.canvas?.graph;
  if (!graph) throw new Error("There is no graph to put the nodes into.");
  app.canvas?.emitBeforeChange();
  try {
    const made = build(graph, wanted);
    graph.updateExecutionOrder();
    await settled([...made.values()]);
    layOut(graph, wanted.frames, made);
    // Where they are, the canvas knows after it has drawn them.
    await settled([...made.values()]);
    app.canvas?.selectItems([...made.values()]);
  } finally {
    app.canvas?.emitAfterChange();
  }
  await app.extensionManager.command.execute("Comfy.Canvas.FitView");
  app.extensionManager.toast.add({ ...told(wanted), summary: LABEL });
}

/**
 * @param {Pick<RunGraph, "program" | "files" | "connect" | "notes">} wanted
 * @returns {{ severity: "info" | "warn", detail: string, life?: number }} a toast; one with notes
 *   stays until it is closed
 */
export function told({ program, files, connect, notes }) {
  const name = files.join(", ");
  const then = connect ? "Connect CLIP and VAE. Ctrl+Z takes it back." : "Ctrl+Z takes it back.";
  const read = `${name} ${files.length > 1 ? "were" : "was"} read as a run file of ${program}. ${then}`;
  if (!notes.length) return { severity: "info", detail: read, life: 8000 };
  const rest = notes.length - MOST_NOTES;
  const shown = notes.slice(0, MOST_NOTES).map((note) => `- ${note}`);
  if (rest > 0) shown.push(`- and ${rest} more: adapter-trainer template --from ${files[0]}`);
  return { severity: "warn", detail: [read, "Not in the graph, or not the same:", ...shown].join("\n") };
}

/**
 * @param {App} app
 * @param {() => Promise<void>} work
 */
async function telling(app, work) {
  try {
    await work();
  } catch (error) {
    const detail = error instanceof Error ? error.message : String(error);
    app.extensionManager.toast.add({ severity: "error", summary: LABEL, detail, life: 15000 });
  }
}

/**
 * @param {unknown} asked
 * @param {Api} api
 * @returns {Promise<RunGraph>}
 */
async function graphOf(asked, api) {
  const response = await api.fetchApi(ROUTE, {
    method: "POST",
    headers: { "Content-Type": "application/json" },
    body: JSON.stringify(asked),
  });
  const answer = await response.json().catch(() => null);
  if (response.ok && answer) return answer;
  throw new Error(toldError(answer) ?? `The server answered ${response.status}.`);
}
