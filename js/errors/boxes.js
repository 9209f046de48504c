// @ts-check
/**
 * Boxes under the nodes that have a fault. They stay until the node's inputs change or the graph is
 * queued again, also where undo or another tab makes the node anew. A run that failed has told its
 * panel already; then there is no box.
 */

import { unfold } from "../folding/advanced_inputs.js";
import { isLiving } from "../living.js";
import { IMAGES_CHANGED } from "../panel/hub.js";
import { ErrorView, toError, toldError } from "./error_view.js";

/**
 * @typedef {import("../comfyui.js").GraphNode} GraphNode
 * @typedef {import("../comfyui.js").Graph} Graph
 * @typedef {import("../comfyui.js").App} App
 * @typedef {import("./error_view.js").NodeError} NodeError
 *
 * @typedef {object} Box
 * @property {string} id of the node in prompts
 * @property {string} workflow that it is in
 * @property {NodeError} error
 * @property {GraphNode} node
 * @property {any} widget null where a panel shows the error
 * @property {string} inputs what they were when the error was told
 */

export const EVENT = "adapter_trainer.error";
/**
 * Nodes that show an error in a panel of their own, with what takes it; null takes it away.
 *
 * @type {WeakMap<GraphNode, (error: NodeError | null) => void>}
 */
export const panels = new WeakMap();

/** Milliseconds between two looks whether an input has changed; no hook tells it everywhere. */
const LOOK = 500;
const TOAST = 12_000;
/** What ComfyUI calls the refusal of a node's own check. */
const CHECK = "custom_validation_failed";
const LEAST_HEIGHT = 90;
const PADDING = 10;
/** What ComfyUI leaves free around an element of a widget. */
const MARGIN = 10;

export class ErrorBoxes {
  /** @param {() => App} page */
  constructor(page) {
    this.page = page;
    /** @type {Map<string, Box>} by workflow and id */
    this.boxes = new Map();
    /** @type {ReturnType<typeof setInterval> | undefined} */
    this.timer = undefined;
  }

  /** @param {{ addEventListener: (type: string, listener: (event: any) => void) => void }} api */
  listen(api) {
    api.addEventListener(EVENT, (event) => this.tell(event.detail ?? {}));
    // Not when it starts: ComfyUI runs the rest of a graph although one of its ends was refused.
    api.addEventListener("promptQueueing", () => this.clear());
    window.addEventListener(IMAGES_CHANGED, (event) => {
      if (/** @type {CustomEvent} */ (event).detail) this.clear(({ node }) => Boolean(node.widgets?.some(({ name }) => name === "dataset")));
    });
  }

  /** @param {Record<string, unknown>} payload */
  tell(payload) {
    const error = toError(payload);
    const app = this.page();
    const root = app.rootGraph ?? app.graph;
    const id = String(payload.node_id);
    // Another workflow may have a node of the same id, of its class or not.
    const elsewhere = payload.workflow && root.id && payload.workflow !== root.id;
    const node = elsewhere ? undefined : nodeOf(id, root);
    if (!error || !(node || elsewhere)) return;
    const detail = toldError(error) ?? "";
    const summary = node?.title ?? String(payload.title ?? "");
    app.extensionManager.toast.add({ severity: "error", summary, detail, life: TOAST });
    const other = payload.class_type && node?.comfyClass && payload.class_type !== node.comfyClass;
    if (node && !other && !payload.in_panel) this.show(id, node, error);
  }

  /**
   * @param {string} id of the node in prompts
   * @param {GraphNode} node
   * @param {NodeError} error
   */
  show(id, node, error) {
    const workflow = this.workflow();
    const key = `${workflow} ${id}`;
    this.remove(key);
    const taken = panels.get(node);
    taken?.(error);
    const widget = taken ? null : this.addBox(key, node, error);
    this.boxes.set(key, { id, workflow, error, node, widget, inputs: inputsOf(node) });
    if (widget) grow(node);
    this.timer ??= setInterval(() => this.look(), LOOK);
  }

  workflow() {
    const app = this.page();
    return (app.rootGraph ?? app.graph).id ?? "";
  }

  /**
   * @param {string} key
   * @param {GraphNode} node
   * @param {NodeError} error
   */
  addBox(key, node, error) {
    const view = new ErrorView(inputsIn(node, this.page()));
    view.draw(error);
    return addMeasured(node, "error", view.element, () => this.boxes.get(key)?.node === node);
  }

  /** Removes the boxes of nodes whose inputs have changed, or that are gone for good. */
  look() {
    const app = this.page();
    const root = app.rootGraph ?? app.graph;
    for (const [key, { id, workflow, error, node, inputs }] of [...this.boxes]) {
      // Another tab is open; its nodes are no business of this one.
      if (workflow !== (root.id ?? "")) continue;
      const now = nodeOf(id, root);
      const same = now?.comfyClass === node.comfyClass && now && inputsOf(now) === inputs;
      if (!same) this.remove(key);
      else if (now !== node) this.show(id, now, error);
      if (same) markCure(app.lastNodeErrors?.[id]?.errors, error.input);
    }
  }

  /** @param {(box: Box) => boolean} [which] which of them; else all, whose marks ComfyUI takes away itself */
  clear(which) {
    for (const [key, box] of [...this.boxes]) {
      if (which && !which(box)) continue;
      this.remove(key);
      if (which) unmark(box, this.page());
    }
  }

  /** @param {string} key */
  remove(key) {
    const box = this.boxes.get(key);
    if (!box) return;
    this.boxes.delete(key);
    const { node, widget } = box;
    panels.get(node)?.(null);
    // In Nodes 2.0 the size of a node that is gone would be that of the one that has its id now.
    if (widget && isLiving(node) && node.widgets?.includes(widget)) {
      const room = Math.max(0, node.size[1] - node.computeSize()[1]);
      node.removeWidget(widget);
      node.setSize([node.size[0], node.computeSize()[1] + room]);
    }
    if (this.boxes.size === 0) {
      clearInterval(this.timer);
      this.timer = undefined;
    }
  }
}

/**
 * Adds an element to a node, as high as its sentences are at the node's width.
 *
 * @param {GraphNode} node
 * @param {string} name
 * @param {HTMLElement} element
 * @param {() => boolean} [stands] whether it is still on the node
 */
export function addMeasured(node, name, element, stands = () => true) {
  let height = LEAST_HEIGHT;
  const widget = node.addDOMWidget(name, `adapter_trainer_${name}`, element, {
    serialize: false,
    hideOnZoom: false,
    getMinHeight: () => height,
  });
  const observer = new ResizeObserver(() => {
    const wanted = contentHeight(element);
    if (!wanted || wanted === height || !stands() || !isLiving(node)) return;
    height = wanted;
    grow(node);
  });
  for (const each of [element, ...element.children]) observer.observe(each);
  return widget;
}

/**
 * Lets ComfyUI mark the input that the remedy names: by itself it marks what the check looks at.
 *
 * @param {{ type?: string, extra_info?: { input_name?: string } }[] | undefined} errors of a node
 * @param {string} input
 */
function markCure(errors, input) {
  for (const { type, extra_info } of input ? (errors ?? []) : []) {
    const other = type === CHECK && extra_info && extra_info.input_name !== input;
    if (other) extra_info.input_name = input;
  }
}

/**
 * Takes away ComfyUI's marks on a node, of an error that is over.
 *
 * @param {Box} box
 * @param {App} app
 */
function unmark({ id, node }, app) {
  if (app.lastNodeErrors) delete app.lastNodeErrors[id];
  node.has_errors = false;
  node.setDirtyCanvas?.(true, true);
}

/**
 * @param {GraphNode} node
 * @param {App} app
 * @returns {import("./error_view.js").Inputs}
 */
export function inputsIn(node, app) {
  return {
    // What is in sight already needs no button.
    has: (input) => Boolean(node.widgets?.some((each) => each.name === input && isFolded(node, each))),
    reveal() {
      unfold(/** @type {any} */ (node));
      app.canvas?.selectNode?.(node);
    },
  };
}

/**
 * @param {GraphNode} node
 * @param {any} widget
 */
function isFolded(node, widget) {
  return Boolean(widget.hidden || (widget.options?.advanced && !(/** @type {any} */ (node).showAdvanced)));
}

/** @param {GraphNode} node */
function inputsOf(node) {
  const values = node.widgets?.filter((each) => each.name !== "error").map((each) => each.value);
  return JSON.stringify([values, node.inputs?.map((each) => each.link ?? null)]);
}

/** @param {GraphNode} node */
function grow(node) {
  const [, height] = node.computeSize();
  if (node.size[1] < height) node.setSize([node.size[0], height]);
  // The canvas lays its widgets out when it draws.
  node.setDirtyCanvas?.(true, true);
}

/** @param {HTMLElement} element */
function contentHeight(element) {
  const last = element.lastElementChild;
  if (!last || !element.clientWidth) return 0;
  const shown = [...element.children].filter((each) => /** @type {HTMLElement} */ (each).offsetHeight);
  const bottom = Math.max(0, ...shown.map((each) => {
    const child = /** @type {HTMLElement} */ (each);
    return child.offsetTop + child.offsetHeight;
  }));
  return bottom + PADDING + 2 * MARGIN;
}

/**
 * @param {string} id of a prompt; inside of subgraphs a path
 * @param {Graph} root
 * @returns {GraphNode | undefined}
 */
export function nodeOf(id, root) {
  /** @type {Graph | undefined} */
  let graph = root;
  /** @type {GraphNode | undefined} */
  let node;
  for (const part of id.split(":")) {
    node = graph?.nodes.find((each) => String(each.id) === part);
    graph = node?.subgraph;
  }
  return node;
}
