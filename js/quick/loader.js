// @ts-check
/**
 * Where the model of Train LoRA (Quick) comes from.
 *
 * @typedef {import("../comfyui.js").GraphNode} GraphNode
 */

const BYPASSED = 4;
const MOST = 100;

/**
 * The class of the node that gives the model, a slash, and its file; nothing without a link.
 *
 * @param {GraphNode} node
 * @returns {string}
 */
export function loaderOf(node) {
  let id = node.inputs?.find((input) => input.name === "model")?.link;
  /** @type {GraphNode | null | undefined} */
  let loader;
  // What only hands the model on, as a Run sees it; a circle of it ends.
  for (let step = 0; id != null && step < MOST; step += 1) {
    const link = node.graph?.getLink(id);
    const from = link ? node.graph?.getNodeById(link.origin_id) : null;
    const hands = from?.isVirtualNode || from?.mode === BYPASSED;
    loader = hands ? null : from;
    id = hands ? from?.inputs?.find(({ type }) => from.isVirtualNode || type === "MODEL")?.link : null;
  }
  if (!loader) return "";
  const files = ["unet_name", "ckpt_name"];
  const file = loader.widgets?.find((widget) => files.includes(widget.name))?.value ?? "";
  return `${loader.comfyClass}/${file}`;
}
