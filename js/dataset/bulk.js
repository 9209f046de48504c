// @ts-check
/** The captions of all images at once: where there is none, everywhere, what is found in them, or tags. */

import { html } from "../panel/dom.js";
import { button } from "./strip.js";

export class Bulk {
  /**
   * @param {(edit: import("./server.js").Edit) => void} write
   * @param {() => Promise<[string, number][]>} tags of all captions
   */
  constructor(write, tags) {
    this.tags = tags;
    const field = (/** @type {string} */ label) =>
      html("input", "dataset-name", { type: "text", "aria-label": label, placeholder: label, spellcheck: "false" });
    this.text = field("Text");
    this.find = field("Find");
    this.list = html("div", "dataset-tags", { role: "group", "aria-label": "Tags" });
    const change = (/** @type {string} */ label, /** @type {import("./server.js").Edit["way"]} */ way) =>
      button("dataset-button", label, () => write({ way, text: this.text.value, find: this.find.value }));
    this.element = html("details", "dataset-bulk", {}, [
      html("summary", "", {}, ["All captions"]),
      this.text,
      html("div", "dataset-buttons", {}, [change("Where there is none", "fill"), change("For all", "all"), change("In front of all", "front")]),
      this.find,
      html("div", "dataset-buttons", {}, [change("Replace by the text", "replace"), change("Remove this tag", "remove")]),
      this.list,
    ]);
    this.element.addEventListener("toggle", () => void this.refresh());
  }

  /** Lists the tags, while it is open; a click looks for one. */
  async refresh() {
    if (!this.element.open) return;
    const tags = await this.tags().catch(() => []);
    this.list.replaceChildren(...tags.map(([tag, count]) => button("dataset-tag", `${tag} ${count}`, () => {
      this.find.value = tag;
      this.find.focus();
    })));
  }

  /** @param {string} word the trigger word, which is offered as the text */
  offer(word) {
    this.text.value ||= word;
  }
}
