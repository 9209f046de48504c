// @ts-check
/**
 * Where the model of Train LoRA (Quick) comes from.
 *
 * @typedef {import("../comfyui.js").GraphNode} GraphNode
 */

/**
 * The class of the node that gives the model, a slash, and its file; nothing without a link.
 *
 * @param {GraphNode} node
 * @returns {string}
 */
export function loaderOf(node) {
  const id = node.inputs?.find((input) => input.name === "model")?.link;
  const link = id == null ? null : node.graph?.getLink(id);
  const loader = link ? node.graph?.getNodeById(link.origin_id) : null;
  if (!loader) return "";
  const files = ["unet_name", "ckpt_name"];
  const file = loader.widgets?.find((widget) => files.includes(widget.name))?.value ?? "";
  return `${loader.comfyClass}/${file}`;
}
