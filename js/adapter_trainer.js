// @ts-check
/** The training panel of the nodes that train, and the button of Load Run. */

import { api } from "../../scripts/api.js";
import { app } from "../../scripts/app.js";
import { Binding } from "./panel/binding.js";
import { remedies } from "./panel/remedy.js";
import { toLook } from "./panel/controls.js";
import { goOn } from "./panel/go_on.js";
import { Hub } from "./panel/hub.js";
import { TrainPanel } from "./panel/panel.js";
import { serverFrom } from "./panel/server.js";
import { addStyle } from "./panel/style.js";
import { handOnWheel } from "./panel/wheel.js";
import { watchZoom } from "./panel/zoom.js";
import { inputsIn, panels as errorPanels } from "./errors/boxes.js";
import { addElement } from "./living.js";
import { addWorkflowButton } from "./run/workflow.js";

/** @typedef {import("./comfyui.js").GraphNode} GraphNode */

const TRAIN_CLASSES = new Set(["AdapterTrainerTrain", "AdapterTrainerQuick"]);
const LOAD_RUN_CLASS = "AdapterTrainerLoadRun";
const LOOK_PROPERTY = "adapter_trainer_panel";
const MIN_HEIGHT = 500;
const MIN_WIDTH = 400;

const server = serverFrom(api);
const hub = new Hub();
hub.listen(api);

/** @type {WeakMap<GraphNode, TrainPanel>} */
const panels = new WeakMap();

/** @returns {Promise<import("./panel/server.js").Prompt>} */
async function prompt() {
  try {
    return (await app.graphToPrompt()).output;
  } catch {
    return null; // a graph that cannot be queued means no run
  }
}

/** @param {GraphNode} node */
function addPanel(node) {
  /** @type {Binding} */
  let binding;
  const panel = new TrainPanel({
    ask: (request) => binding.ask(request),
    goOn: (more) => goOn(binding, more, (nodes) => app.queuePrompt(0, 1, nodes)),
    imageUrl: server.imageUrl,
    apply: (advice, run) => remedies(binding, app, api)(advice, run),
    inputs: inputsIn(node, app),
    onLook: (look) => {
      node.properties[LOOK_PROPERTY] = { ...look };
    },
  });
  binding = new Binding(node, panel, server, () => app.rootGraph ?? app.graph, prompt);
  panels.set(node, panel);
  errorPanels.set(node, (error) => panel.tell(error));
  handOnWheel(panel.element, () => app.canvas?.canvas);

  const { onAdded, onRemoved, onConfigure, onExecuted } = node;
  node.onAdded = function (...args) {
    onAdded?.apply(this, args);
    panel.connect();
    hub.add(binding);
  };
  node.onRemoved = function (...args) {
    hub.delete(binding);
    panel.disconnect();
    onRemoved?.apply(this, args);
  };
  node.onConfigure = function (...args) {
    onConfigure?.apply(this, args);
    panel.setLook(toLook(node.properties[LOOK_PROPERTY]));
  };
  node.onExecuted = function (output) {
    onExecuted?.call(this, output);
    binding.onExecuted(output);
  };

  const widget = { name: "training", type: "adapter_trainer_panel", element: panel.element };
  addElement(node, app, widget, { getMinHeight: () => MIN_HEIGHT });
  const [width, height] = node.computeSize();
  node.setSize([Math.max(MIN_WIDTH, node.size[0], width), Math.max(node.size[1], height)]);
}

app.registerExtension({
  name: "AdapterTrainer.TrainPanel",
  init() {
    addStyle(document);
    watchZoom();
  },
  nodeCreated(node) {
    if (TRAIN_CLASSES.has(node.comfyClass ?? "") && !panels.has(node)) addPanel(node);
    if (node.comfyClass === LOAD_RUN_CLASS) {
      addWorkflowButton(node, server, app, (run) => hub.open(run));
    }
  },
  afterConfigureGraph() {
    hub.restore();
  },
});
