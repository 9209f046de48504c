// @ts-check
/** "Continue" and "Train longer": sets the node so that its run goes on, and presses Run. */

/**
 * @typedef {import("./binding.js").Binding} Binding
 * @typedef {import("../comfyui.js").GraphNode} GraphNode
 */

const NEWEST = "newest";

/**
 * @param {Binding} binding
 * @param {number | null} more steps beyond those that the run has, or null for its planned end
 * @param {() => Promise<boolean>} queue presses Run
 * @returns {Promise<{ taken: boolean, reason: string }>} the reason may be something to know
 */
export async function goOn(binding, more, queue) {
  const { node, run } = binding;
  const resume = valueOf(node, "resume");
  const changes = /** @type {[string, unknown][]} */ ([]);
  if (resume === false) changes.push(["resume", true]);
  if (![undefined, NEWEST].includes(/** @type {any} */ (valueOf(node, "resume_from")))) {
    changes.push(["resume_from", NEWEST]);
  }
  // ComfyUI may have changed the seed since, and another seed would be another run.
  if (run.seed !== null && valueOf(node, "seed") !== undefined) {
    if (valueOf(node, "seed") !== run.seed) changes.push(["seed", run.seed]);
    const after = valueOf(node, "control_after_generate");
    if (after !== undefined && after !== "fixed") changes.push(["control_after_generate", "fixed"]);
  }
  if (more !== null) changes.push(["steps", Math.max(run.step, run.steps) + more]);
  const linked = changes.find(([name]) => isLinked(node, name));
  if (linked) {
    const reason = `${linked[0]} comes from another node: set it to ${linked[1]} there, and press Run.`;
    return { taken: false, reason };
  }
  for (const [name, value] of changes) setValue(node, name, value);
  const answer = await binding.ask("continue");
  if (!answer.taken) return answer;
  if (!(await queue())) return { taken: false, reason: "ComfyUI did not take the graph; it says why." };
  const said = `Queued. It goes on from step ${run.step}.`;
  return { taken: true, reason: resume === false ? `${said} resume was off, and is on now.` : said };
}

/**
 * @param {GraphNode} node
 * @param {string} name
 */
function valueOf(node, name) {
  return node.widgets?.find((widget) => widget.name === name)?.value;
}

/**
 * @param {GraphNode} node
 * @param {string} name
 */
function isLinked(node, name) {
  return node.inputs?.some((input) => input.name === name && input.link != null) ?? false;
}

/**
 * @param {GraphNode} node
 * @param {string} name
 * @param {unknown} value
 */
function setValue(node, name, value) {
  const widget = node.widgets?.find((candidate) => candidate.name === name);
  if (!widget) return;
  widget.value = value;
  widget.callback?.(value);
  node.setDirtyCanvas?.(true, true);
}
