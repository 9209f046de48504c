// @ts-check
/** What Check Adapter found, whole and on the node; ComfyUI's own line of text would be cut off. */

import { app } from "../../scripts/app.js";
import { addMeasured } from "./errors/boxes.js";
import { html, setText } from "./panel/dom.js";

app.registerExtension({
  name: "AdapterTrainer.Verdict",
  nodeCreated(node) {
    if (node.comfyClass !== "AdapterTrainerCheck") return;
    const text = html("p", "verdict-text");
    const element = html("section", "verdict", { "aria-live": "polite" }, [text]);
    const { onExecuted } = node;
    node.onExecuted = function (output) {
      onExecuted?.call(this, output);
      const { text: found } = /** @type {{ text?: string[] }} */ (output ?? {});
      if (!found?.length) return;
      if (!node.widgets?.some(({ name }) => name === "verdict")) addMeasured(node, "verdict", element);
      setText(text, found.join("\n"));
    };
  },
});
