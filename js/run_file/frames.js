// @ts-check
/**
 * Puts nodes into frames with a title, from left to right, as the pack's templates have them.
 *
 * @typedef {import("../comfyui.js").GraphNode} GraphNode
 * @typedef {import("../comfyui.js").Graph} Graph
 *
 * @typedef {object} Frame
 * @property {string} title
 * @property {string[][]} columns ids of the nodes, from left to right
 */

const WIDTH = 400;
const NODE_TITLE = 30;
const GAP = 30;
const EDGE = 20;
const FRAME_TITLE = 44;
const BETWEEN = 40;
/** For the line that ComfyUI adds below a node whose file is absent. */
const SPARE = 40;

/**
 * Puts the nodes below all that is there, so that they cover nothing.
 *
 * @param {Graph} graph
 * @param {Frame[]} frames
 * @param {Map<string, GraphNode>} made
 */
export function layOut(graph, frames, made) {
  const own = new Set(made.values());
  const others = graph.nodes.filter((each) => !own.has(each));
  const low = [...others, ...(graph.groups ?? [])].map((each) => each.pos[1] + each.size[1]);
  const top = low.length ? Math.max(...low) + 2 * BETWEEN : 0;
  let left = Math.min(0, ...others.map((each) => each.pos[0]));
  for (const { title, columns } of frames) {
    const [width, height] = fill(columns, made, left + EDGE, top + FRAME_TITLE);
    const group = new window.LiteGraph.LGraphGroup(title);
    group.pos = [left, top];
    group.size = [width + 2 * EDGE, FRAME_TITLE + height + EDGE];
    graph.add(group);
    left += width + 2 * EDGE + BETWEEN;
  }
  graph.setDirtyCanvas(true, true);
}

/**
 * @param {string[][]} columns
 * @param {Map<string, GraphNode>} made
 * @param {number} left
 * @param {number} top
 * @returns {[number, number]} the width and the height that the nodes take
 */
function fill(columns, made, left, top) {
  let [x, height] = [left, 0];
  for (const column of columns) {
    const nodes = column.flatMap((id) => made.get(id) ?? []);
    let [y, width] = [top, 0];
    for (const node of nodes) {
      node.setSize([Math.max(WIDTH, node.size[0]), node.size[1]]);
      node.pos = [x, y + NODE_TITLE];
      y += NODE_TITLE + node.size[1] + SPARE + GAP;
      width = Math.max(width, node.size[0]);
    }
    height = Math.max(height, y - top - GAP);
    x += width + GAP;
  }
  return [x - GAP - left, height];
}
