// @ts-check
/**
 * Which nodes live, and that an element of ours is on the one that does.
 *
 * Undo, another tab and a subgraph make nodes anew under the ids of those before, which keep their
 * `graph`. Nodes 2.0 mounts an element once for each id: the one of the node that is gone would stay.
 */

/**
 * @typedef {import("./comfyui.js").GraphNode} GraphNode
 * @typedef {import("./comfyui.js").Graph} Graph
 * @typedef {import("./comfyui.js").App} App
 *
 * @typedef {object} Held an element on its node
 * @property {GraphNode} node
 * @property {string} name
 * @property {HTMLElement} element
 */

/** Screen refreshes after which Nodes 2.0 has surely drawn what is new. */
const FRAMES = 12;

/** @type {Set<Held>} */
const held = new Set();
/** @type {WeakSet<HTMLElement>} */
const watched = new WeakSet();
let left = 0;

/**
 * Puts an element on a node as a widget that no workflow saves, and keeps it on the node that lives.
 *
 * @param {GraphNode} node
 * @param {App} app
 * @param {{ name: string, type: string, element: HTMLElement }} widget
 * @param {Omit<Parameters<GraphNode["addDOMWidget"]>[3], "serialize" | "hideOnZoom">} options
 */
export function addElement(node, app, { name, type, element }, options) {
  const own = { node, name, element };
  element.dataset.adapterTrainer = name;
  const widget = node.addDOMWidget(name, type, element, { serialize: false, hideOnZoom: false, ...options });
  const { onAdded, onRemoved, onConfigure } = node;
  node.onAdded = function (...args) {
    onAdded?.apply(this, args);
    held.add(own);
    settleSoon(app);
  };
  node.onRemoved = function (...args) {
    held.delete(own);
    onRemoved?.apply(this, args);
  };
  node.onConfigure = function (...args) {
    onConfigure?.apply(this, args);
    settleSoon(app);
  };
  return widget;
}

/** @param {App} app */
function settleSoon(app) {
  const canvas = app.canvas?.canvas;
  if (canvas && !watched.has(canvas)) {
    watched.add(canvas);
    canvas.addEventListener("litegraph:set-graph", () => settleSoon(app));
  }
  if (left === 0) requestAnimationFrame(() => settle(app));
  left = FRAMES;
}

/** @param {App} app */
function settle(app) {
  for (const { node, name, element } of held) {
    if (!isLiving(node) || app.canvas?.graph !== node.graph) continue;
    const home = `[data-node-id="${CSS.escape(String(node.id))}"]`;
    const there = document.querySelector(`${home} [data-adapter-trainer="${name}"]`);
    if (there !== element) there?.replaceWith(element);
  }
  left -= 1;
  if (left > 0) requestAnimationFrame(() => settle(app));
}

/**
 * @param {GraphNode} node
 * @returns {boolean} whether its graph has it, and not another one under its id
 */
export function isLiving(node) {
  return node.graph?.getNodeById(node.id) === node;
}
