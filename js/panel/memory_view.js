// @ts-check
/** Where the run keeps what: one line, and a table of this and other ways behind it. */

import { html, setText, TABLE } from "./dom.js";
import { formatGibibytes, formatStepTime } from "./format.js";

/**
 * @typedef {import("./run.js").Memory} Memory
 * @typedef {import("./run.js").MemoryRow} MemoryRow
 */

/** @type {Record<string, string>} */
const PLACES = { pinned: "pinned RAM", file: "the file" };

export class MemoryView {
  constructor() {
    this.line = html("summary", "");
    this.table = html("table", "");
    this.element = html("details", "memory", TABLE, [this.line, this.table]);
    this.drawn = "";
  }

  /** @param {Memory | null} memory */
  draw(memory) {
    this.element.hidden = memory === null;
    const content = JSON.stringify(memory);
    if (memory === null || content === this.drawn) return;
    this.drawn = content;
    setText(this.line, memoryLine(memory));
    const [vram, ram] = [memory.deviceFree, memory.ramFree].map((free) => `of ${formatGibibytes(free)} GiB`);
    const names = ["", "Base", "Blocks swapped", "Checkpointed", `VRAM ${vram}`, `RAM ${ram}`, "Per step"];
    const head = html("tr", "", {}, names.map((name) => html("th", "", { scope: "col" }, [name])));
    const rows = memory.rows.map((row, i) => tableRow(memory, row, i === 0));
    this.table.replaceChildren(html("thead", "", {}, [head]), html("tbody", "", {}, rows));
  }
}

/**
 * @param {Memory} memory
 * @returns {string} such as `Base in fp8, 20 of 60 blocks in RAM; 11.2 of 12.0 GiB VRAM`
 */
export function memoryLine(memory) {
  const [row] = memory.rows;
  const base = row.format === "dense" ? "Base dense" : `Base in ${row.format === "file" ? "its file's format" : row.format}`;
  const swapped = row.swapped > 0 ? `, ${swappedBlocks(memory, row)}` : "";
  const [needed, free] = [row.deviceBytes, memory.deviceFree].map(formatGibibytes);
  return `${base}${swapped}; ${needed} of ${free} GiB VRAM`;
}

/**
 * @param {Memory} memory
 * @param {MemoryRow} row
 */
function swappedBlocks(memory, row) {
  const one = row.swapped === 1 && memory.blocks === 0;
  return `${swappedCount(memory, row)} ${one ? "block" : "blocks"} in ${place(row)}`;
}

/**
 * @param {Memory} memory
 * @param {MemoryRow} row
 */
function swappedCount(memory, row) {
  return memory.blocks > 0 ? `${row.swapped} of ${memory.blocks}` : String(row.swapped);
}

/** @param {MemoryRow} row */
function place(row) {
  return PLACES[row.master] ?? "RAM";
}

/**
 * @param {Memory} memory
 * @param {MemoryRow} row
 * @param {boolean} taken
 */
function tableRow(memory, row, taken) {
  const inRam = row.inputs === "ram" ? ", inputs in RAM" : "";
  const cells = [
    row.format,
    row.swapped > 0 ? `${swappedCount(memory, row)}, ${place(row)}` : "none",
    row.checkpointed > 0 ? `${row.checkpointed}${inRam}` : "none",
    formatGibibytes(row.deviceBytes),
    formatGibibytes(row.ramBytes),
    formatStepTime(row.seconds),
  ].map((text) => html("td", "", {}, [text]));
  const mark = html("th", "", taken ? { scope: "row", "aria-label": "taken" } : {}, [taken ? "✓" : ""]);
  return html("tr", taken ? "taken" : "", {}, [mark, ...cells]);
}
