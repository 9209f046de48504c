// @ts-check
/** Advanced inputs of the pack's nodes are folded, also where ComfyUI does not do so by itself. */

import { app } from "../../scripts/app.js";
import { addFolding } from "./folding/advanced_inputs.js";

const SHOW_ALL = "Comfy.Node.AlwaysShowAdvancedWidgets";

/** @type {any} */
const page = globalThis;
const host = {
  showsAll: () => !!(/** @type {any} */ (app.extensionManager)?.setting?.get(SHOW_ALL)),
  measuresItself: () => !!page.LiteGraph?.vueNodesMode,
};

app.registerExtension({
  name: "AdapterTrainer.Folding",
  nodeCreated(node) {
    if (!node.comfyClass?.startsWith("AdapterTrainer")) return;
    const { nodeData } = /** @type {any} */ (node.constructor);
    addFolding(/** @type {any} */ (node), nodeData?.input ?? {}, host);
  },
});
