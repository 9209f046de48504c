// @ts-check
/** Lets a run go on, or be done once more, from its own workflow, or from its settings where it has none. */

import { Binding, runName } from "../panel/binding.js";
import { goOn } from "../panel/go_on.js";
import { openRun } from "../run_file/open.js";
import { loadWorkflow } from "../run/workflow.js";
import { t } from "./texts.js";

/**
 * @typedef {import("../comfyui.js").App} App
 * @typedef {import("../comfyui.js").Api} Api
 * @typedef {import("../comfyui.js").GraphNode} GraphNode
 * @typedef {import("../panel/server.js").Server} Server
 * @typedef {import("../panel/run.js").Run} Run
 */

const QUICK_CLASS = "AdapterTrainerQuick";
const TRAIN_CLASSES = new Set(["AdapterTrainerTrain", QUICK_CLASS]);
const AGAIN = t("Change what you like, and press Run: resume is off, so that it becomes a new run.");

export class GoOn {
  /** @param {App} app @param {Api} api @param {Server} server */
  constructor(app, api, server) {
    this.app = app;
    this.api = api;
    this.server = server;
  }

  /**
   * Opens the run's graph, and queues its training.
   *
   * @param {Run} run
   * @param {{ more?: number | null, step?: number | null }} how so many more steps; from a checkpoint
   */
  async start(run, { more = null, step = null }) {
    const node = await this.open(run.version);
    const prompt = async () => (await this.app.graphToPrompt()).output;
    const binding = new Binding(node, { show() {} }, this.server, () => this.root, prompt);
    binding.run = run;
    const { taken, reason } = await goOn(binding, more, (nodes) => this.app.queuePrompt(0, 1, nodes), step);
    if (!taken) throw new Error(reason);
    this.tell(run.version, reason);
  }

  /** Opens the run's graph for other settings. @param {Run} run */
  async again(run) {
    const node = await this.open(run.version);
    const resume = node.widgets?.find((widget) => widget.name === "resume");
    if (resume) {
      resume.value = false;
      resume.callback?.(false);
    }
    this.app.canvas?.selectItems([node]);
    this.tell(run.version, t(AGAIN));
  }

  get root() {
    return this.app.rootGraph ?? this.app.graph;
  }

  /** @param {string} run @returns {Promise<GraphNode>} the node that trains it */
  async open(run) {
    const [name] = run.split("/");
    try {
      await loadWorkflow(run, this.server, this.app, (content) => trains(content, name));
    } catch {
      await openRun(run, this.api, this.app);
    }
    const nodes = nodesOf(this.root).filter((node) => TRAIN_CLASSES.has(node.comfyClass ?? ""));
    const node = nodes.findLast((each) => runName(each) === name) ?? nodes.findLast((each) => runName(each) === null);
    if (!node) throw new Error(t("The graph has no node that trains {name}.", { name }));
    return node;
  }

  /** @param {string} summary @param {string} detail */
  tell(summary, detail) {
    this.app.extensionManager.toast.add({ severity: "info", summary, detail, life: 8000 });
  }
}

/**
 * Whether a workflow or prompt has a node that trains a run of a name, or has its name over a link;
 * a sweep's trial has none.
 *
 * @param {unknown} content of a file that may come from anybody
 * @param {string} name
 */
export function trains(content, name) {
  const { nodes, definitions, ...prompt } = /** @type {any} */ (content ?? {});
  const listed = (/** @type {unknown} */ value) => (Array.isArray(value) ? value : []);
  const subgraphs = listed(definitions?.subgraphs).flatMap((each) => listed(each?.nodes));
  const all = nodes === undefined ? Object.values(prompt) : [...listed(nodes), ...subgraphs];
  return all.some((node) => {
    const kind = node?.type ?? node?.class_type;
    if (!TRAIN_CLASSES.has(kind)) return false;
    const linked = listed(node.inputs).some((input) => input?.name === "name" && input.link != null);
    // A prompt has the names of values, a workflow their order alone.
    const values = node.class_type ? [node.inputs?.name] : Object.values(node.widgets_values ?? {});
    // The quick node may be left without a name.
    const wanted = kind === QUICK_CLASS ? [name, ""] : [name];
    return linked || values.some((own) => Array.isArray(own) || wanted.includes(String(own).trim().normalize("NFC")));
  });
}

/** @param {import("../comfyui.js").Graph} graph @returns {GraphNode[]} also those of its subgraphs */
function nodesOf(graph) {
  return graph.nodes.flatMap((node) => [node, ...(node.subgraph ? nodesOf(node.subgraph) : [])]);
}
