// @ts-check
/** What is good to know of a run, folded: nobody has to do anything about it. */

import { html, setText } from "./dom.js";

export class NotesView {
  /**
   * @param {string} name of its class
   * @param {(count: number) => string} title
   */
  constructor(name, title) {
    this.title = title;
    this.summary = html("summary", "");
    this.list = html("ul", "");
    this.element = html("details", name, {}, [this.summary, this.list]);
  }

  /** @param {string[]} notes */
  draw(notes) {
    this.element.hidden = notes.length === 0;
    setText(this.summary, this.title(notes.length));
    const shown = [...this.list.children].map((item) => item.textContent);
    if (shown.join("\n") === notes.join("\n")) return;
    this.list.replaceChildren(...notes.map((text) => html("li", "", {}, [text])));
  }
}
