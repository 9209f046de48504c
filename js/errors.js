// @ts-check
/** What is wrong with a node is told under it, and in a toast. */

import { api } from "../../scripts/api.js";
import { app } from "../../scripts/app.js";
import { ErrorBoxes } from "./errors/boxes.js";
import { addErrorStyle } from "./errors/style.js";

const boxes = new ErrorBoxes(() => app);
boxes.listen(api);

app.registerExtension({
  name: "AdapterTrainer.Errors",
  init() {
    addErrorStyle(document);
  },
});
