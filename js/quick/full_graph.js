// @ts-check
/**
 * Lays out the nodes that do what Train LoRA (Quick) does, with every setting open. Which nodes and
 * which values the server says; nothing of it is written here.
 *
 * @typedef {import("../comfyui.js").GraphNode} GraphNode
 * @typedef {import("../comfyui.js").Graph} Graph
 * @typedef {import("../comfyui.js").App} App
 *
 * @typedef {object} FullGraph
 * @property {Record<string, { class_type: string, inputs: Record<string, unknown> }>} nodes as in a
 *   prompt of the API
 * @property {string[][]} columns ids of the nodes, from left to right
 * @property {string} train id of the node whose outputs are those of the quick one
 * @property {Record<string, [string, string][]>} inputs which inputs get the links of an own one
 */

import { toldError } from "../errors/error_view.js";
import { loaderOf } from "./loader.js";
import { isLiving } from "../living.js";

export const LABEL = "Open as full graph";

const BYPASSED = 4;
const GAP = 60;
const TITLE = 40;
const STILL_FRAMES = 10;
const MOST_FRAMES = 60;

/**
 * Adds the button above the panel. It is not an input, so no workflow saves it.
 *
 * @param {GraphNode} node
 * @param {{ fetchApi: (route: string, options?: RequestInit) => Promise<Response> }} api
 * @param {App} app
 */
export function addFullGraphButton(node, api, app) {
  if (node.widgets?.some((widget) => widget.name === LABEL)) return;
  const press = () => openFullGraph(node, api, app);
  const button = node.addWidget("button", LABEL, null, press, { serialize: false });
  button.serialize = false;
  button.tooltip =
    "Puts the nodes with all settings below, filled in with what would be trained now. This node " +
    "is bypassed; Ctrl+Z takes it back.";
  const widgets = node.widgets ?? [];
  // The strip of images may be there already, or come later: extensions load in any order.
  const panel = widgets.findIndex((widget) => ["dataset", "training"].includes(widget.name));
  const own = widgets.findIndex((widget) => widget.name === LABEL);
  if (panel >= 0 && panel < own) widgets.splice(panel, 0, ...widgets.splice(own, 1));
}

/**
 * @param {GraphNode} node
 * @param {{ fetchApi: (route: string, options?: RequestInit) => Promise<Response> }} api
 * @param {App} app
 * @returns {Promise<GraphNode[]>} the nodes that were added
 */
export async function openFullGraph(node, api, app) {
  const toast = app.extensionManager.toast;
  try {
    const wanted = await fullGraphOf(node, api);
    const { graph } = node;
    // Meanwhile another tab may have been opened, in the same graph.
    if (!graph || !isLiving(node)) return [];
    app.canvas?.emitBeforeChange();
    /** @type {GraphNode[]} */
    let added = [];
    try {
      const made = build(graph, wanted);
      added = [...made.values()];
      takeLinks(graph, node, wanted, made);
      // Saved with each node, and counted anew by a Run: what then changed would be another step
      // for Ctrl+Z.
      graph.updateExecutionOrder();
      node.mode = BYPASSED;
      await settled([...made.values()]);
      arrange(graph, node, wanted.columns, made);
      // Where they are, the canvas knows after it has drawn them.
      await settled([...made.values()]);
      app.canvas?.selectItems([...made.values()]);
    } finally {
      app.canvas?.emitAfterChange();
    }
    await app.extensionManager.command.execute("Comfy.Canvas.FitView");
    const detail = "The quick node is bypassed. Ctrl+Z takes both back.";
    toast.add({ severity: "info", summary: LABEL, detail, life: 6000 });
    return added;
  } catch (error) {
    const detail = error instanceof Error ? error.message : String(error);
    toast.add({ severity: "error", summary: LABEL, detail, life: 12000 });
    return [];
  }
}

/**
 * @param {GraphNode} node
 * @param {{ fetchApi: (route: string, options?: RequestInit) => Promise<Response> }} api
 * @returns {Promise<FullGraph>}
 */
async function fullGraphOf(node, api) {
  const linked = new Set(node.inputs?.filter((i) => i.link != null).map((i) => i.name));
  const own = (node.widgets ?? []).filter((w) => w.serialize !== false && !linked.has(w.name));
  const values = Object.fromEntries(own.map((widget) => [widget.name, widget.value]));
  values.loader = loaderOf(node);
  const response = await api.fetchApi("/adapter_trainer/full_graph", {
    method: "POST",
    headers: { "Content-Type": "application/json" },
    body: JSON.stringify(values),
  });
  const answer = await response.json().catch(() => null);
  if (response.ok && answer) return answer;
  throw new Error(toldError(answer) ?? `The server answered ${response.status}.`);
}

/**
 * Makes the nodes, with their values and the links among them.
 *
 * @param {Graph} graph
 * @param {Pick<FullGraph, "nodes">} wanted
 * @returns {Map<string, GraphNode>}
 */
export function build(graph, wanted) {
  /** @type {Map<string, GraphNode>} */
  const made = new Map();
  for (const [id, { class_type }] of Object.entries(wanted.nodes)) {
    const node = window.LiteGraph.createNode(class_type);
    if (!node) throw new Error(`There is no node ${class_type}. Update the pack and restart ComfyUI.`);
    graph.add(node);
    made.set(id, node);
  }
  for (const [id, { inputs }] of Object.entries(wanted.nodes)) {
    const node = /** @type {GraphNode} */ (made.get(id));
    for (const [name, value] of Object.entries(inputs)) {
      if (Array.isArray(value)) link(made.get(value[0]), value[1], node, name);
      else setValue(node, name, value);
    }
  }
  return made;
}

/**
 * @param {GraphNode} node
 * @param {string} name
 * @param {unknown} value
 */
function setValue(node, name, value) {
  const widget = node.widgets?.find((each) => each.name === name);
  if (!widget) throw new Error(`${node.comfyClass} has no input ${name}. Reload the page.`);
  // A list from before the page was loaded, or of another folder: ComfyUI would call the file missing.
  const known = widget.options?.values;
  if (widget.options && Array.isArray(known) && value && !known.includes(value)) {
    widget.options.values = [...known, value];
  }
  widget.value = value;
  widget.callback?.(value);
}

/**
 * @param {GraphNode | null | undefined} from
 * @param {number} output
 * @param {GraphNode | null | undefined} to
 * @param {string} input
 */
function link(from, output, to, input) {
  const slot = to?.findInputSlot(input) ?? -1;
  if (from && to && slot >= 0) from.connect(output, to, slot);
}

/**
 * Gives the new nodes what is linked to the quick one, and hands its outputs' links to them.
 *
 * @param {Graph} graph
 * @param {GraphNode} node
 * @param {FullGraph} wanted
 * @param {Map<string, GraphNode>} made
 */
function takeLinks(graph, node, wanted, made) {
  for (const { name, link: id } of node.inputs ?? []) {
    const source = id == null ? null : graph.getLink(id);
    if (!source) continue;
    for (const [target, input] of wanted.inputs[name] ?? []) {
      link(graph.getNodeById(source.origin_id), source.origin_slot, made.get(target), input);
    }
  }
  const train = made.get(wanted.train);
  for (const [output, { links }] of (node.outputs ?? []).entries()) {
    for (const id of [...(links ?? [])]) {
      const taken = graph.getLink(id);
      const target = taken && graph.getNodeById(taken.target_id);
      if (taken && target) train?.connect(output, target, taken.target_slot);
    }
  }
}

/**
 * Puts the nodes below all others, so that they cover none, from left to right.
 *
 * @param {Graph} graph
 * @param {GraphNode} quick below which they lie
 * @param {string[][]} columns
 * @param {Map<string, GraphNode>} made
 */
function arrange(graph, quick, columns, made) {
  const own = new Set(made.values());
  const others = graph.nodes.filter((each) => !own.has(each));
  const low = others.map((each) => each.pos[1] + each.size[1]);
  const top = low.length ? Math.max(...low) + GAP + TITLE : 0;
  let x = quick.pos[0];
  for (const column of columns) {
    const nodes = column.flatMap((id) => made.get(id) ?? []);
    let y = top;
    for (const node of nodes) {
      node.pos = [x, y];
      y += node.size[1] + GAP + TITLE;
    }
    x += Math.max(0, ...nodes.map((node) => node.size[0])) + GAP;
  }
  graph.setDirtyCanvas(true, true);
}

/**
 * Waits until nodes have had the same sizes for some frames: they are known only after they were
 * shown, and what changed later would be another step for Ctrl+Z.
 *
 * @param {GraphNode[]} nodes
 */
export async function settled(nodes) {
  let before = "";
  for (let frame = 0, same = 0; frame < MOST_FRAMES && same < STILL_FRAMES; frame++) {
    await new Promise((resolve) => requestAnimationFrame(resolve));
    const now = JSON.stringify(nodes.map((node) => [...node.size]));
    same = now === before ? same + 1 : 0;
    before = now;
  }
}
