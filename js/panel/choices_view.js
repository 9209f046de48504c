// @ts-check
/** What a preset chose and why: one line, and a table behind it. */

import { html, TABLE } from "./dom.js";

/** @typedef {import("./run.js").Choice} Choice */

export class ChoicesView {
  constructor() {
    this.table = html("tbody", "");
    const names = ["Setting", "Value", "Why"];
    const head = html("tr", "", {}, names.map((name) => html("th", "", { scope: "col" }, [name])));
    const table = html("table", "", {}, [html("thead", "", {}, [head]), this.table]);
    const line = html("summary", "", {}, ["What was chosen, and why"]);
    this.element = html("details", "choices", TABLE, [line, table]);
    this.drawn = "";
  }

  /** @param {Choice[]} choices in the order of importance */
  draw(choices) {
    this.element.hidden = choices.length === 0;
    const content = JSON.stringify(choices);
    if (content === this.drawn) return;
    this.drawn = content;
    const rows = choices.map(({ setting, value, why }) => {
      const cells = [value, why].map((text) => html("td", "", {}, [text]));
      return html("tr", "", {}, [html("th", "", { scope: "row" }, [setting]), ...cells]);
    });
    this.table.replaceChildren(...rows);
  }
}
