// @ts-check
/** Puts the strip on a node that has a widget `folder`. */

import { addElement } from "../living.js";
import { handOnWheel } from "../panel/wheel.js";
import { loaderOf } from "../quick/loader.js";
import { Dialog } from "./dialog.js";
import { holdsFiles } from "./files.js";
import { Strip } from "./strip.js";
import { HEIGHT, MARGIN } from "./style.js";

/**
 * @typedef {import("../comfyui.js").GraphNode} GraphNode
 * @typedef {import("../comfyui.js").App} App
 * @typedef {NonNullable<GraphNode["widgets"]>[number]} Widget
 */

const WIDGET = "dataset";
const FOLDER = "folder";
/** Lists of folders, which get a new one at once. */
const LISTS = [FOLDER, "regularization_folder"];
/** Widgets that the report depends on. */
const SETTINGS = [
  "layout", "caption_extension", "trigger_word", "resolution", "max_aspect_ratio", "upscale", "crop", "metadata",
  "missing_caption", "missing_image", "missing_control", "unreadable", "animated",
];
/** Those of Train LoRA (Quick), from which the server chooses the settings. */
const ANSWERS = [FOLDER, "base", "goal", "quality", "trigger_word", "kind"];
const SOON = 250;
/** What a Run is told in the place of a folder while dropped images wait for theirs. */
const UPLOAD_FIRST = "press Upload on the node first: the dropped images are in no folder yet";
const NAME = "name";
/** The node's property that keeps whether its name was typed: one that was not is the folder's. */
const TYPED = "adapter_trainer_named";

/**
 * @param {GraphNode} node
 * @param {import("./server.js").DatasetServer} server
 * @param {App} app
 */
export function addStrip(node, server, app) {
  const widget = (/** @type {string} */ name) => node.widgets?.find((each) => each.name === name);
  const linked = () => node.inputs?.some((input) => input.name === FOLDER && input.link != null);
  const folder = () => (linked() ? null : String(widget(FOLDER)?.value ?? ""));
  const values = (/** @type {string[]} */ names) =>
    Object.fromEntries(names.flatMap((name) => (widget(name) ? [[name, widget(name)?.value]] : [])));
  const settings = () => (widget("goal") ? { answers: { ...values(ANSWERS), loader: loaderOf(node) } } : values(SETTINGS));
  const dialog = new Dialog(server, { folder, settings, closed: () => void strip.refresh() });
  const strip = new Strip(server, {
    folder,
    settings,
    folders: () => options(widget(FOLDER)),
    choose: (name) => choose(node, name, app),
    open: (index) => void dialog.open(index),
  });

  let waiting = 0;
  const soon = () => {
    clearTimeout(waiting);
    waiting = window.setTimeout(() => void strip.refresh(), SOON);
  };
  // Files may have been changed in another program.
  const back = () => {
    if (!strip.uploading && !dialog.element.open && strip.form.hidden) soon();
  };
  const chosen = widget(FOLDER);
  if (chosen) chosen.serializeValue = () => (strip.form.hidden ? chosen.value : UPLOAD_FIRST);
  follow(widget(NAME), () => {
    node.properties[TYPED] = widget(NAME)?.value !== "";
  });
  follow(widget(FOLDER), () => {
    const own = widget(NAME);
    // Empty, it follows the folder; that of a template is not a name of other images.
    if (own && !node.properties[TYPED]) own.value = "";
  });
  for (const name of new Set([...SETTINGS, ...ANSWERS])) follow(widget(name), soon);
  handOnWheel(strip.element, () => app.canvas?.canvas);
  addElement(node, app, { name: WIDGET, type: "adapter_trainer_dataset", element: strip.element }, {
    margin: MARGIN,
    getMinHeight: () => HEIGHT + 2 * MARGIN,
    getMaxHeight: () => HEIGHT + 2 * MARGIN,
  });
  putAbovePanel(node);
  acceptDrops(node, strip);

  const { onAdded, onRemoved, onConfigure } = node;
  node.onAdded = function (...args) {
    onAdded?.apply(this, args);
    window.addEventListener("focus", back);
    soon();
  };
  node.onConfigure = function (...args) {
    onConfigure?.apply(this, args);
    soon();
  };
  node.onRemoved = function (...args) {
    window.removeEventListener("focus", back);
    clearTimeout(waiting);
    strip.disconnect();
    dialog.discard();
    onRemoved?.apply(this, args);
  };
  const [width, height] = node.computeSize();
  node.setSize([Math.max(node.size[0], width), Math.max(node.size[1], height)]);
}

/**
 * What a node is given comes before what it does; the widgets that a workflow saves stay in front.
 *
 * @param {GraphNode} node
 */
function putAbovePanel({ widgets = [] }) {
  const own = widgets.findIndex(({ name }) => name === WIDGET);
  const panel = widgets.findIndex(({ name }) => name === "training");
  if (panel >= 0 && panel < own) widgets.splice(panel, 0, ...widgets.splice(own, 1));
}

/**
 * @param {GraphNode} node
 * @param {Strip} strip
 */
function acceptDrops(node, strip) {
  const { onDragOver, onDragDrop } = node;
  node.onDragOver = function (event) {
    return holdsFiles(event.dataTransfer) || (onDragOver?.call(this, event) ?? false);
  };
  node.onDragDrop = async function (event) {
    const transfer = event.dataTransfer;
    if (transfer && holdsFiles(transfer)) return strip.drop(transfer);
    return (await onDragDrop?.call(this, event)) ?? false;
  };
}

/**
 * @param {Widget | undefined} widget
 * @param {() => void} changed
 */
function follow(widget, changed) {
  if (!widget) return;
  const { callback } = widget;
  widget.callback = function (...args) {
    const result = callback?.apply(this, args);
    changed();
    return result;
  };
}

/** @param {Widget | undefined} widget */
function options(widget) {
  const values = widget?.options?.values;
  return Array.isArray(values) ? values.map(String) : [];
}

/**
 * Chooses a folder, which the lists of all nodes know from now on.
 *
 * @param {GraphNode} node
 * @param {string} folder
 * @param {App} app
 */
function choose(node, folder, app) {
  for (const each of [node, ...(node.graph?.nodes ?? [])]) {
    if (!each.comfyClass?.startsWith("AdapterTrainer")) continue;
    for (const widget of each.widgets ?? []) {
      const values = options(widget);
      if (!widget.options || !LISTS.includes(widget.name) || !values.length) continue;
      if (!values.includes(folder)) widget.options.values = [...values, folder];
    }
  }
  const widget = node.widgets?.find((each) => each.name === FOLDER);
  if (!widget) return;
  // Seen as a change at once, which else waits for the next click.
  app.canvas?.emitBeforeChange?.();
  widget.value = folder;
  widget.callback?.(folder);
  app.canvas?.emitAfterChange?.();
  app.canvas?.setDirty?.(true, true);
  // Nodes that are added later read their lists from there.
  void app.reloadNodeDefs?.()?.catch(() => {});
}
