// @ts-check
/**
 * "Open run file as graph": in the menu, among the commands, in the context menus of the canvas and
 * of the nodes that train, as a button of Load Run, and for what is dropped on the canvas.
 */

import { api } from "../../scripts/api.js";
import { app } from "../../scripts/app.js";
import { addRunFileButton } from "./run/workflow.js";
import { openDropped } from "./run_file/dropped.js";
import { LABEL, chooseRunFile, openRun } from "./run_file/open.js";

const COMMAND = "AdapterTrainer.OpenRunFile";
const TRAIN_CLASSES = ["AdapterTrainerTrain", "AdapterTrainerQuick", "AdapterTrainerSaveRunFile"];
const LOAD_RUN_CLASS = "AdapterTrainerLoadRun";

const choose = () => chooseRunFile(api, app);
const entry = { content: LABEL, callback: choose };

app.registerExtension({
  name: "AdapterTrainer.RunFile",
  commands: [{ id: COMMAND, label: LABEL, icon: "pi pi-file-import", function: choose }],
  menuCommands: [{ path: ["Adapter Trainer"], commands: [COMMAND] }],
  getCanvasMenuItems: () => [null, entry],
  getNodeMenuItems: (node) => (TRAIN_CLASSES.includes(node.comfyClass ?? "") ? [null, entry] : []),
  async setup() {
    openDropped(api, app, document);
  },
  nodeCreated(node) {
    if (node.comfyClass === LOAD_RUN_CLASS) {
      addRunFileButton(node, app, (run) => openRun(run, api, app));
    }
  },
});
