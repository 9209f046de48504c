// @ts-check
/** A node and its panel: which messages are the node's, and what is asked of the server. */

import { toError } from "../errors/error_view.js";
import { fromSnapshot, isActive, NO_RUN, withProgress, withSample } from "./run.js";

/**
 * @typedef {import("./run.js").Run} Run
 * @typedef {import("./server.js").Server} Server
 * @typedef {import("./server.js").RunRequest} RunRequest
 * @typedef {import("./server.js").Prompt} Prompt
 * @typedef {import("../comfyui.js").GraphNode} GraphNode
 * @typedef {import("../comfyui.js").Graph} Graph
 *
 * @typedef {object} Screen where a run is shown
 * @property {(run: Run, offline: boolean) => void} show
 */

/** The node's property that keeps what it showed last, for a server that has forgotten. */
export const RUN_PROPERTY = "adapter_trainer_run";
/** What the node's outputs say of the run that they come from. */
const RUN_OUTPUT = "adapter_trainer_run";

/** Milliseconds without a message, beside two steps, after which a run that is computed is asked for. */
export const QUIET = 5000;

const LOST = "The server was restarted. Its last checkpoint is kept; run the graph again to resume.";

export class Binding {
  /**
   * @param {GraphNode} node
   * @param {Screen} screen
   * @param {Server} server
   * @param {() => Graph} rootGraph
   * @param {() => Promise<Prompt>} prompt the graph as it would be queued
   */
  constructor(node, screen, server, rootGraph, prompt) {
    this.node = node;
    this.screen = screen;
    this.server = server;
    this.rootGraph = rootGraph;
    this.prompt = prompt;
    /** @type {Run} */
    this.run = NO_RUN;
    this.offline = false;
    /** Counts what was heard, so that an answer that was overtaken is dropped. */
    this.heard = 0;
    this.heardAt = 0;
    this.catchingUp = false;
    /** The prompt whose snapshot was asked for: once is enough. */
    this.askedFor = "";
    /** The graph that what is shown was asked for with. */
    this.meant = "";
    /** The node's id in the running prompt; inside a subgraph it is a path. */
    this.nodeId = "";
  }

  /** @param {Record<string, unknown>} payload of a whole snapshot */
  onState(payload) {
    if (!this.isMine(payload)) return;
    const run = fromSnapshot(payload, this.run);
    if (!run) return;
    this.heard++;
    this.nodeId = String(payload.node_id);
    this.keep(run);
    this.show(run);
  }

  /** @param {Record<string, unknown>} payload */
  onProgress(payload) {
    this.onPart(payload, withProgress);
  }

  /** @param {Record<string, unknown>} payload */
  onSample(payload) {
    this.onPart(payload, withSample);
  }

  /**
   * Adds a message to its run. If the run's beginning was not heard, the snapshot is asked for.
   *
   * @param {Record<string, unknown>} payload
   * @param {(run: Run, payload: unknown) => Run} add
   */
  onPart(payload, add) {
    if (!this.isMine(payload)) return;
    const promptId = String(payload.prompt_id ?? "");
    const known = this.run.status !== "idle" && this.run.promptId === promptId;
    /** @type {Run} */
    const begun = { ...NO_RUN, promptId, name: String(payload.name ?? ""), status: "training" };
    this.nodeId = String(payload.node_id);
    this.show(add(known ? this.run : begun, payload));
    if (!known && this.askedFor !== promptId) {
      this.askedFor = promptId;
      void this.restore();
    }
  }

  /**
   * The node was executed, or ComfyUI gave what it remembers of it, which may be of a run before
   * the one that is shown.
   *
   * @param {unknown} output
   */
  onExecuted(output) {
    const said = /** @type {Record<string, unknown> | null} */ (output)?.[RUN_OUTPUT];
    const run = Array.isArray(said) ? said[0] : null;
    if (typeof run === "string" && run !== this.run.version && !isActive(this.run)) {
      void this.restore(run);
    }
  }

  /** Shows a run on disk if it is of the node's name. @param {string} run name and version */
  open(run) {
    if (this.isNamed(run.split("/")[0])) void this.restore(run);
  }

  /**
   * Shows the run that the node's settings mean, as far as the server knows; where there is none,
   * what it says instead.
   *
   * @param {string} [exact] the version that it has to be
   */
  async restore(exact) {
    const heard = ++this.heard;
    const kept = this.node.properties?.[RUN_PROPERTY];
    const about = {
      name: runName(this.node) ?? "",
      workflow: this.rootGraph().id ?? "",
      run: exact ?? (typeof kept === "string" ? kept : ""),
      exact: exact !== undefined,
    };
    const prompt = about.exact ? null : await this.prompt();
    if (prompt) this.meant = JSON.stringify(prompt);
    let reason = null;
    /** @type {unknown} */
    let refused = null;
    let isReplaced = false;
    for (const id of this.ids()) {
      /** @type {any} */
      let payload;
      try {
        payload = await this.server.state(id, about, prompt);
      } catch {
        return;
      }
      if (heard !== this.heard) return;
      const run = fromSnapshot(payload, this.run);
      if (run && (run.promptId === this.run.promptId || this.isNamed(run.name))) {
        this.nodeId = id;
        this.show(run);
        return;
      }
      isReplaced ||= run !== null;
      reason = payload?.reason ?? reason;
      refused = payload?.refused ?? refused;
    }
    const isLost = isActive(this.run) && !reason && !isReplaced;
    if (isLost) this.show({ ...this.run, status: "lost", message: LOST });
    else if (reason !== null || isActive(this.run)) this.show({ ...NO_RUN, message: reason ?? "", refused: toError(refused) });
  }

  /**
   * A run has begun, or its status is another one; the page that has queued it has heard more already.
   *
   * @param {Record<string, unknown>} payload
   */
  onChanged({ prompt_id: promptId, status, ...payload }) {
    const isSame = promptId === this.run.promptId && status === this.run.status;
    // Why it failed is known a moment later.
    const isKnown = isSame && !(status === "failed" && !this.run.error);
    if (!isKnown && this.isMine({ prompt_id: promptId, ...payload })) void this.restore();
  }

  /**
   * Asks for a run that is computed and says nothing: ComfyUI sends messages to the page alone that
   * has queued it, not to another one and not to a new one. Whatever the node's settings are by now,
   * it is shown until it ends, or until the node trains another one.
   */
  async catchUp() {
    const { version, promptId, name, stepSeconds } = this.run;
    if (!isActive(this.run) || this.offline || this.catchingUp) return;
    if (Date.now() - this.heardAt < QUIET + 2000 * (stepSeconds ?? 0)) return;
    const about = { name, workflow: this.rootGraph().id ?? "", run: version, exact: Boolean(version) };
    const heardAt = (this.heardAt = Date.now());
    this.catchingUp = true;
    try {
      const run = fromSnapshot(await this.server.state(this.askedId, about, null), this.run);
      const isSame = run && (version ? run.version === version : run.promptId === promptId);
      if (heardAt !== this.heardAt) return;
      if (isSame) this.show(run);
      else if (run) void this.restore();
    } catch {
      // The next look may reach the server.
    } finally {
      this.catchingUp = false;
    }
  }

  /** Shows the run of other settings, once what is computed for these is over. */
  async restoreChanged() {
    const prompt = JSON.stringify(await this.prompt());
    if (!isActive(this.run) && prompt !== this.meant) await this.restore();
  }

  /** A prompt ended, in whatever way; the last message may have been missed. @param {string} promptId */
  onPromptEnd(promptId) {
    this.meant = "";
    if (promptId === this.run.promptId && isActive(this.run)) void this.restore();
  }

  /** @param {boolean} offline */
  onConnection(offline) {
    this.offline = offline;
    this.show(this.run);
    if (!offline) void this.restore();
  }

  /** @param {RunRequest} request @param {object} [more] */
  ask(request, more) {
    return this.server.request(this.askedId, request, more);
  }

  /** The node's id in a prompt. */
  get askedId() {
    return this.nodeId || (this.ids()[0] ?? "");
  }

  /** @param {Run} run */
  show(run) {
    this.run = run;
    this.heardAt = Date.now();
    this.screen.show(run, this.offline);
  }

  /**
   * A workflow that is saved after a run shows that run again. What is only looked at changes no
   * workflow: it would be another step for Ctrl+Z.
   *
   * @param {Run} run
   */
  keep(run) {
    if (run.version && this.node.properties) this.node.properties[RUN_PROPERTY] = run.version;
  }

  ids() {
    return executionIds(this.node, this.rootGraph());
  }

  /**
   * Another workflow may have a node of the same id, so the run has to be of this workflow, where
   * both are known, and of the node's name. A run that is already shown stays, even if the name was
   * changed since it began.
   *
   * @param {Record<string, unknown>} payload
   */
  isMine(payload) {
    if (!this.ids().includes(String(payload.node_id))) return false;
    const { workflow } = payload;
    const own = this.rootGraph().id;
    if (workflow && own && workflow !== own) return false;
    const shown = this.run.status !== "idle" && payload.prompt_id === this.run.promptId;
    return shown || this.isNamed(payload.name);
  }

  /** @param {unknown} name */
  isNamed(name) {
    const own = runName(this.node);
    return own === null || own === name;
  }
}

/**
 * @param {GraphNode} node
 * @returns {string | null} the run's name in the node's widget; null when it comes over a link, or
 *   is empty, which leaves it to the server
 */
export function runName(node) {
  const linked = node.inputs?.some((input) => input.name === "name" && input.link != null);
  const widget = node.widgets?.find((candidate) => candidate.name === "name");
  if (linked || typeof widget?.value !== "string") return null;
  return widget.value.trim().normalize("NFC") || null;
}

/**
 * The ids that a node has in prompts: its own, or a path for each place its subgraph is used.
 *
 * @param {GraphNode} node
 * @param {Graph} root
 * @returns {string[]}
 */
export function executionIds(node, root) {
  if (!node.graph) return [];
  if (node.graph === root || node.graph.isRootGraph) return [String(node.id)];
  return pathsTo(node.graph, root, "").map((path) => path + node.id);
}

/**
 * @param {Graph} target
 * @param {Graph} from
 * @param {string} prefix
 * @returns {string[]}
 */
function pathsTo(target, from, prefix) {
  return from.nodes.flatMap((node) => {
    if (!node.subgraph) return [];
    const path = `${prefix}${node.id}:`;
    return [...(node.subgraph === target ? [path] : []), ...pathsTo(target, node.subgraph, path)];
  });
}
