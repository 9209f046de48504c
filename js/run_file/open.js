// @ts-check
/**
 * Lays out the nodes of a run file: of ours, or of another trainer. Which nodes and which values the
 * server says; the file's text is all that it is given.
 *
 * @typedef {import("../comfyui.js").App} App
 * @typedef {{ fetchApi: (route: string, options?: RequestInit) => Promise<Response> }} Api
 */

import { arrange, build, settled } from "../quick/full_graph.js";

export const LABEL = "Open run file as graph";
const FORMATS = ".yaml,.yml,.toml,.json,.txt,.sh,.bat,.cmd,.ps1";
const LARGEST = 2 ** 20;
const MOST_NOTES = 12;

/**
 * Lets the user choose a file, and opens it.
 *
 * @param {Api} api
 * @param {App} app
 */
export function chooseRunFile(api, app) {
  const input = document.createElement("input");
  input.type = "file";
  input.accept = FORMATS;
  input.addEventListener("change", () => {
    const file = input.files?.[0];
    if (file) openRunFile(file, api, app);
  });
  input.click();
}

/**
 * @param {{ name: string, size: number, text: () => Promise<string> }} file
 * @param {Api} api
 * @param {App} app
 */
export async function openRunFile(file, api, app) {
  const toast = app.extensionManager.toast;
  try {
    if (file.size > LARGEST) throw new Error("The file is larger than any run file.");
    const wanted = await graphOf(file.name, await file.text(), api);
    const graph = app.canvas?.graph;
    if (!graph) throw new Error("There is no graph to put the nodes into.");
    app.canvas?.emitBeforeChange();
    try {
      const made = build(graph, wanted);
      graph.updateExecutionOrder();
      await settled([...made.values()]);
      arrange(graph, null, wanted.columns, made);
      await settled([...made.values()]);
      app.canvas?.selectItems([...made.values()]);
    } finally {
      app.canvas?.emitAfterChange();
    }
    await app.extensionManager.command.execute("Comfy.Canvas.FitView");
    toast.add({ ...told(file.name, wanted), summary: LABEL });
  } catch (error) {
    const detail = error instanceof Error ? error.message : String(error);
    toast.add({ severity: "error", summary: LABEL, detail, life: 15000 });
  }
}

/**
 * @param {string} name
 * @param {{ program: string, notes: string[] }} wanted
 * @returns {{ severity: "info" | "warn", detail: string, life?: number }} a toast; one with notes
 *   stays until it is closed
 */
export function told(name, { program, notes }) {
  const read = `${name} was read as a run file of ${program}. Connect CLIP and VAE.`;
  if (!notes.length) return { severity: "info", detail: read, life: 8000 };
  const rest = notes.length - MOST_NOTES;
  const shown = notes.slice(0, MOST_NOTES).map((note) => `- ${note}`);
  if (rest > 0) shown.push(`- and ${rest} more: adapter-trainer template --from ${name}`);
  return { severity: "warn", detail: [read, "Not in the graph, or not the same:", ...shown].join("\n") };
}

/**
 * @param {string} name
 * @param {string} text
 * @param {Api} api
 * @returns {Promise<{ nodes: any, columns: string[][], program: string, notes: string[] }>}
 */
async function graphOf(name, text, api) {
  const response = await api.fetchApi("/adapter_trainer/run_file_graph", {
    method: "POST",
    headers: { "Content-Type": "application/json" },
    body: JSON.stringify({ name, text }),
  });
  const answer = await response.json().catch(() => null);
  if (response.ok && answer) return answer;
  const parts = [`Found: ${answer?.found}`, `Expected: ${answer?.expected}`, answer?.remedy];
  throw new Error(answer?.found ? parts.join("\n") : `The server answered ${response.status}.`);
}
