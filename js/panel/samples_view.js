// @ts-check
/** Sample images as a table of buttons: a row for each step, newest first, a column per prompt. */

import { html, setText } from "./dom.js";

/** @typedef {import("./run.js").Sample} Sample */

/** So many steps are shown; the rest is reached in the large view. */
const ROWS = 30;

export class SamplesView {
  /**
   * @param {(sample: Sample, thumbnail: boolean) => string} imageUrl
   * @param {(sample: Sample) => void} onOpen
   * @param {(large: boolean) => void} onSize
   */
  constructor(imageUrl, onOpen, onSize) {
    this.imageUrl = imageUrl;
    this.onOpen = onOpen;
    /** @type {Map<string, HTMLButtonElement>} */
    this.buttons = new Map();
    /** @type {readonly Sample[] | null} */
    this.drawn = null;
    this.large = false;
    this.size = html("button", "size", { type: "button" });
    this.size.addEventListener("click", () => onSize(!this.large));
    const heading = html("div", "heading", {}, [html("span", "label", {}, ["Samples"]), this.size]);
    this.grid = html("div", "grid", { role: "list", "aria-label": "Sample images" });
    // The attribute lets a focused list keep the mouse wheel in Nodes 2.0.
    const attributes = { tabindex: "-1", "data-capture-wheel": "true" };
    this.scroller = html("div", "scroller", attributes, [this.grid]);
    this.element = html("div", "samples", {}, [heading, this.scroller]);
    this.element.hidden = true;
  }

  /**
   * @param {readonly Sample[]} samples by step, then prompt
   * @param {boolean} large whether they have most of the panel
   */
  draw(samples, large) {
    this.large = large;
    this.element.dataset.large = String(large);
    setText(this.size, large ? "Smaller" : "Larger");
    this.size.title = large ? "Give the curve its room again" : "Give the samples most of the panel";
    if (samples === this.drawn) return;
    this.drawn = samples;
    this.element.hidden = samples.length === 0;
    const rows = newestSteps(samples, ROWS);
    const columns = samples.reduce((most, sample) => Math.max(most, sample.index + 1), 1);
    this.grid.style.setProperty("--adapter-trainer-columns", String(columns));

    const before = this.buttons;
    this.buttons = new Map();
    const parts = [promptRow(samples)];
    for (const [step, row] of rows) {
      const label = html("div", "row-label", {}, [stepName(step)]);
      const cells = row.map((sample) => this.cell(sample, before));
      parts.push(html("div", "row", { role: "listitem" }, [label, ...cells]));
    }
    this.grid.replaceChildren(...parts);
  }

  /**
   * @param {Sample} sample
   * @param {Map<string, HTMLButtonElement>} before images already loaded, used again
   */
  cell(sample, before) {
    const key = this.imageUrl(sample, true);
    const button = before.get(key) ?? this.makeButton(sample, key);
    button.style.gridColumn = String(sample.index + 2);
    this.buttons.set(key, button);
    return button;
  }

  /**
   * @param {Sample} sample
   * @param {string} url
   */
  makeButton(sample, url) {
    const name = describeSample(sample);
    const title = sample.prompt ? `${name}: ${sample.prompt}` : name;
    const image = html("img", "", { src: url, alt: title, loading: "lazy", draggable: "false" });
    const button = html("button", "thumbnail", { type: "button", title }, [image]);
    image.addEventListener("error", () => button.classList.add("adapter-trainer-missing"));
    button.addEventListener("click", () => this.onOpen(sample));
    return button;
  }
}

/**
 * @param {readonly Sample[]} samples by step
 * @returns {HTMLElement} the prompts above their columns, as the newest images have them
 */
function promptRow(samples) {
  const prompts = new Map(samples.map((sample) => [sample.index, sample.prompt]));
  const cells = [...prompts].map(([index, prompt]) => {
    const cell = html("div", "prompt", { title: prompt }, [prompt || `prompt ${index + 1}`]);
    cell.style.gridColumn = String(index + 2);
    return cell;
  });
  return html("div", "row", { "data-heading": "" }, cells);
}

/**
 * @param {Sample} sample
 * @returns {string}
 */
export function describeSample(sample) {
  return `Step ${sample.step}, prompt ${sample.index + 1}`;
}

/**
 * @param {number} step
 * @returns {string}
 */
export function stepName(step) {
  return step === 0 ? "before training" : `step ${step}`;
}

/**
 * @param {readonly Sample[]} samples by step
 * @param {number} most
 * @returns {[number, Sample[]][]} the last steps and their images, newest first
 */
export function newestSteps(samples, most) {
  /** @type {Map<number, Sample[]>} */
  const steps = new Map();
  for (const sample of samples) {
    const row = steps.get(sample.step);
    if (row) row.push(sample);
    else steps.set(sample.step, [sample]);
  }
  return [...steps.entries()].reverse().slice(0, most);
}
