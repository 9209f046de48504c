// @ts-check
/** What a node has found or written, whole and on it; ComfyUI's own text is cut off, also inside words. */

import { app } from "../../scripts/app.js";
import { addMeasured } from "./errors/boxes.js";
import { html, setText } from "./panel/dom.js";

const TELLING = ["AdapterTrainerCheck", "AdapterTrainerSave", "AdapterTrainerConvert"];

app.registerExtension({
  name: "AdapterTrainer.Verdict",
  nodeCreated(node) {
    if (!TELLING.includes(node.comfyClass ?? "")) return;
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
