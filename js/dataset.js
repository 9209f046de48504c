// @ts-check
/** Datasets at the nodes that name their folder: dropped images, thumbnails, captions. */

import { api } from "../../scripts/api.js";
import { app } from "../../scripts/app.js";
import { addStrip } from "./dataset/attach.js";
import { DatasetServer } from "./dataset/server.js";
import { addStyle } from "./dataset/style.js";
import { addStyle as addPanelStyle } from "./panel/style.js";

const NODE_CLASSES = ["AdapterTrainerDatasetFolder", "AdapterTrainerQuick"];

const server = new DatasetServer(api);
const known = new WeakSet();

app.registerExtension({
  name: "AdapterTrainer.Dataset",
  init() {
    addPanelStyle(document);
    addStyle(document);
  },
  nodeCreated(node) {
    if (!NODE_CLASSES.includes(node.comfyClass ?? "") || known.has(node)) return;
    known.add(node);
    addStrip(node, server, app);
  },
});
