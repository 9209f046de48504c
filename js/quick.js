// @ts-check
/** What the node Train LoRA (Quick) has beside the panel: the button "Open as full graph". */

import { api } from "../../scripts/api.js";
import { app } from "../../scripts/app.js";
import { addFullGraphButton } from "./quick/full_graph.js";

const QUICK_CLASS = "AdapterTrainerQuick";

app.registerExtension({
  name: "AdapterTrainer.Quick",
  nodeCreated(node) {
    if (node.comfyClass === QUICK_CLASS) addFullGraphButton(node, api, app);
  },
});
