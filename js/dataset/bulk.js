// @ts-check
/** The captions of all images at once: where there is none, everywhere, or what is found in them. */

import { html } from "../panel/dom.js";
import { button } from "./strip.js";

export class Bulk {
  /** @param {(edit: import("./server.js").Edit) => void} write */
  constructor(write) {
    const field = (/** @type {string} */ label) =>
      html("input", "dataset-name", { type: "text", "aria-label": label, placeholder: label, spellcheck: "false" });
    this.text = field("Text");
    this.find = field("Find");
    const change = (/** @type {string} */ label, /** @type {import("./server.js").Edit["way"]} */ way) =>
      button("dataset-button", label, () => write({ way, text: this.text.value, find: this.find.value }));
    this.element = html("details", "dataset-bulk", {}, [
      html("summary", "", {}, ["All captions"]),
      this.text,
      html("div", "dataset-buttons", {}, [change("Where there is none", "fill"), change("For all", "all")]),
      this.find,
      html("div", "dataset-buttons", {}, [change("Replace by the text", "replace")]),
    ]);
  }

  /** @param {string} word the trigger word, which is offered as the text */
  offer(word) {
    this.text.value ||= word;
  }
}
