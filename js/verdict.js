// @ts-check
/** What Check Adapter found, whole and on the node; ComfyUI's own line of text would be cut off. */

import { app } from "../../scripts/app.js";
import { html, setText } from "./panel/dom.js";
import { THEME, addOnce } from "./panel/theme.js";

/** @typedef {import("./comfyui.js").GraphNode} GraphNode */

const NODE_CLASS = "AdapterTrainerCheck";
const NAME = "verdict";
const STYLE = `
.adapter-trainer-verdict { ${THEME} width: 100%; overflow: hidden auto; user-select: text; }
.adapter-trainer-verdict p { margin: 0; padding: 4px; white-space: pre-line; overflow-wrap: anywhere; }
`;
/** What ComfyUI leaves free around an element of a widget, above and below. */
const MARGINS = 20;

/** @param {GraphNode} node @returns {HTMLElement} */
function addText(node) {
  const text = html("p", "verdict-text");
  const element = html("section", NAME, { "aria-live": "polite" }, [text]);
  let height = MARGINS;
  node.addDOMWidget(NAME, "adapter_trainer_verdict", element, {
    serialize: false, hideOnZoom: false, getMinHeight: () => height,
  });
  new ResizeObserver(() => {
    height = text.offsetHeight + MARGINS;
    const [, least] = node.computeSize();
    if (text.offsetHeight && node.size[1] < least) node.setSize([node.size[0], least]);
    node.setDirtyCanvas?.(true, true);
  }).observe(text);
  return text;
}

app.registerExtension({
  name: "AdapterTrainer.Verdict",
  init() {
    addOnce(document, "adapter-trainer-verdict-style", STYLE);
  },
  nodeCreated(node) {
    if (node.comfyClass !== NODE_CLASS) return;
    /** @type {HTMLElement | undefined} */
    let text;
    const { onExecuted } = node;
    node.onExecuted = function (output) {
      onExecuted?.call(this, output);
      const { text: found } = /** @type {{ text?: string[] }} */ (output ?? {});
      if (!found?.length) return;
      text ??= addText(node);
      setText(text, found.join("\n"));
    };
  },
});
