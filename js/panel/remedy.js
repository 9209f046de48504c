// @ts-check
/** Does what an advice names: an adapter into the loras folder, or a setting for the next run. */

import { openFullGraph } from "../quick/full_graph.js";
import { CHECKPOINT, inputOf } from "./advice_view.js";
import { isActive } from "./run.js";

/**
 * @typedef {import("./binding.js").Binding} Binding
 * @typedef {import("../comfyui.js").App} App
 * @typedef {import("../comfyui.js").GraphNode} GraphNode
 */

/**
 * @param {Binding} binding of the node whose run it is
 * @param {App} app
 * @param {{ fetchApi: (route: string, options?: RequestInit) => Promise<Response> }} api
 * @returns {import("./advice_view.js").Apply}
 */
export function remedies(binding, app, api) {
  return async (advice, run) => {
    if (advice.setting === CHECKPOINT) {
      const answer = await binding.ask("use", { run: run.version, step: advice.value });
      // Load LoRA lists it at once.
      if (answer.taken) await app.reloadNodeDefs?.();
      return answer.reason;
    }
    const { node } = binding;
    const name = inputOf(advice);
    let target = find([node], name);
    if (!target && !node.inputs?.some((input) => input.name === name)) {
      // The quick node chooses it; its full graph has the input.
      target = find([...((await openFullGraph(node, api, app)) ?? [])], name);
    }
    if (!target) return `${name} comes over a link: set it to ${advice.value} where it comes from.`;
    app.canvas?.emitBeforeChange();
    target.widget.callback?.(advice.value);
    // Behind it: it may round to the step of the arrows.
    target.widget.value = advice.value;
    app.canvas?.emitAfterChange();
    app.canvas?.setDirty?.(true, true);
    if (name !== "learning_rate") return `${name} is ${advice.value}, for a new run.`;
    // A run that is not finished goes on with another rate.
    return isActive(run)
      ? `${name} is ${advice.value}. Cancel, then Run: it goes on from here with it.`
      : `${name} is ${advice.value}, from the next Run on.`;
  };
}

/** @param {GraphNode[]} nodes @param {string} name */
function find(nodes, name) {
  for (const node of nodes) {
    const linked = node.inputs?.some((input) => input.name === name && input.link != null);
    const widget = linked ? undefined : node.widgets?.find((each) => each.name === name);
    if (widget) return { node, widget };
  }
  return null;
}
