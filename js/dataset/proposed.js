// @ts-check
/** The caption that a captioner proposes, beside the one that is there: nothing changes before it is taken. */

import { html, setText } from "../panel/dom.js";
import { button } from "./strip.js";

export class Proposed {
  /**
   * @param {{ take: (text: string) => void, write: (way: "propose" | "propose_fill") => void,
   *   dismiss: () => void }} host
   */
  constructor({ take, write, dismiss }) {
    this.text = html("div", "dataset-proposal", { tabindex: "0", "aria-label": "Proposed caption" });
    this.head = html("div", "dataset-size");
    this.take = button("dataset-button adapter-trainer-main", "Take it", () => take(this.text.textContent ?? ""));
    this.all = button("dataset-button", "Take all", () => write("propose"));
    this.all.title = "Captions that were edited since stay as they are";
    this.fill = button("dataset-button", "Take where there is none", () => write("propose_fill"));
    this.element = html("div", "dataset-proposed", {}, [
      this.head, this.text,
      html("div", "dataset-buttons", {}, [this.take, this.all, this.fill, button("dataset-button", "Dismiss", dismiss)]),
    ]);
    this.element.hidden = true;
  }

  /**
   * @param {import("./server.js").Caption} caption
   * @param {boolean} editable
   */
  draw({ proposal = "", proposals }, editable) {
    // What was just saved says nothing of proposals.
    if (proposals === undefined) return;
    this.element.hidden = !proposals || !editable;
    this.text.hidden = this.take.hidden = !proposal;
    setText(this.text, proposal);
    setText(this.head, proposal ? "Proposed instead:" : `${proposals} captions are proposed, none other for this image.`);
  }
}
