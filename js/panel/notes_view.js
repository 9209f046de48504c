// @ts-check
/** What is good to know of a run, folded: nobody has to do anything about it. */

import { html, setText } from "./dom.js";

export class NotesView {
  constructor() {
    this.summary = html("summary", "");
    this.list = html("ul", "");
    this.element = html("details", "notes", {}, [this.summary, this.list]);
  }

  /** @param {string[]} notes */
  draw(notes) {
    this.element.hidden = notes.length === 0;
    setText(this.summary, notes.length === 1 ? "1 note" : `${notes.length} notes`);
    const shown = [...this.list.children].map((item) => item.textContent);
    if (shown.join("\n") === notes.join("\n")) return;
    this.list.replaceChildren(...notes.map((text) => html("li", "", {}, [text])));
  }
}
