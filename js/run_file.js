// @ts-check
/** The command "Open run file as graph", in the menu and among the commands. */

import { api } from "../../scripts/api.js";
import { app } from "../../scripts/app.js";
import { chooseRunFile } from "./run_file/open.js";

const COMMAND = "AdapterTrainer.OpenRunFile";

app.registerExtension({
  name: "AdapterTrainer.RunFile",
  commands: [
    {
      id: COMMAND,
      label: "Open run file as graph",
      icon: "pi pi-file-import",
      function: () => chooseRunFile(api, app),
    },
  ],
  menuCommands: [{ path: ["Adapter Trainer"], commands: [COMMAND] }],
});
