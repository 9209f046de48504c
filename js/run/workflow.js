// @ts-check
/**
 * The buttons of the Load Run node: they open the workflow which a run was started from, and its
 * settings as nodes.
 *
 * @typedef {import("../comfyui.js").GraphNode} GraphNode
 * @typedef {import("../comfyui.js").App} App
 * @typedef {import("../panel/server.js").Server} Server
 */

export const LABEL = "Load workflow";
export const RUN_FILE_LABEL = "Open run file as graph";

/**
 * Adds the button below the node's inputs. It is not an input, so no workflow saves it.
 *
 * @param {GraphNode} node
 * @param {Server} server
 * @param {App} app
 * @param {(run: string) => void} onOpen told of the run whose workflow is open now
 */
export function addWorkflowButton(node, server, app, onOpen) {
  if (node.widgets?.some((widget) => widget.name === LABEL)) return;
  const press = () => openWorkflow(node, server, app, onOpen);
  const button = node.addWidget("button", LABEL, null, press, { serialize: false });
  button.serialize = false;
  button.tooltip = "Opens the workflow that this run was started from, in a tab of its own.";
}

/**
 * Adds the button for a run that no graph was started from.
 *
 * @param {GraphNode} node
 * @param {App} app
 * @param {(run: string) => Promise<void>} openRun
 */
export function addRunFileButton(node, app, openRun) {
  if (node.widgets?.some((widget) => widget.name === RUN_FILE_LABEL)) return;
  const press = () => telling(app, RUN_FILE_LABEL, () => openRun(chosenRun(node)));
  const button = node.addWidget("button", RUN_FILE_LABEL, null, press, { serialize: false });
  button.serialize = false;
  button.tooltip =
    "Puts the nodes of this run's settings below the others, also of a run from the command " +
    "line. Ctrl+Z takes them back.";
}

/**
 * @param {GraphNode} node
 * @param {Server} server
 * @param {App} app
 * @param {(run: string) => void} onOpen
 */
export async function openWorkflow(node, server, app, onOpen) {
  await telling(app, LABEL, async () => {
    const run = chosenRun(node);
    await loadWorkflow(run, server, app);
    onOpen(run);
  });
}

/**
 * Opens the workflow which a run was started from, in a tab of its own.
 *
 * @param {string} run
 * @param {Server} server
 * @param {App} app
 * @param {(content: unknown) => boolean} [wanted] whether it may take the place of what is open
 */
export async function loadWorkflow(run, server, app, wanted = () => true) {
  const content = await server.workflow(run);
  if (!wanted(content)) throw new Error("The workflow is another one than is needed.");
  await open(content, run.replaceAll("/", " "), app);
}

/**
 * Does what may be refused, and shows the reason.
 *
 * @param {App} app
 * @param {string} summary
 * @param {() => Promise<void>} work
 */
export async function telling(app, summary, work) {
  try {
    await work();
  } catch (error) {
    const detail = error instanceof Error ? error.message : String(error);
    app.extensionManager.toast.add({ severity: "warn", summary, detail, life: 8000 });
  }
}

/** @param {GraphNode} node */
function chosenRun(node) {
  if (node.inputs?.find((input) => input.name === "run")?.link != null) {
    throw new Error("The run comes from another node. Choose it here to load its workflow.");
  }
  const value = node.widgets?.find((widget) => widget.name === "run")?.value;
  if (typeof value !== "string" || !value) throw new Error("Choose a run first.");
  return value;
}

/**
 * Hands a workflow to ComfyUI as it is.
 *
 * @param {unknown} content of a file that may come from anybody
 * @param {string} name
 * @param {App} app
 */
async function open(content, name, app) {
  if (isObject(content) && Array.isArray(content.nodes)) {
    await app.loadGraphData(content, true, true, name);
  } else if (isPrompt(content)) {
    await app.loadApiJson(content, name);
  } else {
    throw new Error("What is kept of this run is not a workflow.");
  }
}

/** @param {unknown} content what the server ran; a run that was started without a page has no more */
function isPrompt(content) {
  if (!isObject(content)) return false;
  const nodes = Object.values(content);
  return nodes.length > 0 && nodes.every((node) => isObject(node) && "class_type" in node);
}

/**
 * @param {unknown} value
 * @returns {value is Record<string, unknown>}
 */
function isObject(value) {
  return typeof value === "object" && value !== null && !Array.isArray(value);
}
