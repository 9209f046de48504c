// @ts-check
/**
 * A sample in full size. Left and right go to the other steps, up and down to the other prompts.
 * Compared with another step, left and right move the line between the two images.
 */

import { Comparison } from "./comparison.js";
import { html, setText } from "./dom.js";
import { describeSample } from "./samples_view.js";

/** @typedef {import("./run.js").Sample} Sample */

/** @type {Record<string, ["step" | "prompt", 1 | -1]>} */
const KEYS = {
  ArrowLeft: ["step", -1],
  ArrowRight: ["step", 1],
  ArrowUp: ["prompt", -1],
  ArrowDown: ["prompt", 1],
};

export class Lightbox {
  /** @param {(sample: Sample, thumbnail: boolean) => string} imageUrl */
  constructor(imageUrl) {
    this.imageUrl = imageUrl;
    /** @type {readonly Sample[]} */
    this.samples = [];
    /** @type {Sample | null} */
    this.shown = null;
    this.image = html("img", "large", { draggable: "false" });
    this.comparison = new Comparison(this.image, imageUrl, () => this.shown && this.show(this.shown));
    this.caption = html("div", "caption", { "aria-live": "polite" });
    this.prompt = html("div", "prompt-text");
    this.previous = this.button("previous", "‹", "Earlier step", () => this.go("step", -1));
    this.next = this.button("next", "›", "Later step", () => this.go("step", 1));
    const close = this.button("close", "✕", "Close", () => this.close());
    this.element = html("dialog", "lightbox", { "aria-label": "Sample image" }, [
      html("div", "stage", {}, [this.previous, this.comparison.frame, this.next]),
      this.caption,
      this.prompt,
      this.comparison.element,
      close,
    ]);
    this.element.addEventListener("keydown", (event) => this.key(event));
    this.element.addEventListener("click", (event) => {
      if (event.target === this.element) this.close();
    });
    this.element.addEventListener("close", () => this.element.remove());
  }

  /**
   * @param {Sample} sample
   * @param {readonly Sample[]} samples all there are
   */
  open(sample, samples) {
    this.samples = samples;
    this.show(sample);
    if (this.element.open) return;
    document.body.append(this.element);
    this.element.showModal();
  }

  /** Keeps up with new images while it is open. @param {readonly Sample[]} samples */
  update(samples) {
    if (samples === this.samples || !this.element.open) return;
    this.samples = samples;
    if (this.shown) this.show(this.shown);
  }

  close() {
    if (this.element.open) this.element.close();
    this.element.remove();
  }

  /** @param {Sample} sample */
  show(sample) {
    this.shown = sample;
    const url = this.imageUrl(sample, false);
    if (!this.image.getAttribute("src")?.startsWith(url)) this.image.src = url;
    this.image.alt = describeSample(sample);
    setText(this.caption, describeSample(sample));
    setText(this.prompt, sample.prompt);
    this.previous.disabled = !neighbour(this.samples, sample, "step", -1);
    this.next.disabled = !neighbour(this.samples, sample, "step", 1);
    this.comparison.draw(sample, this.samples);
  }

  /**
   * @param {"step" | "prompt"} axis
   * @param {1 | -1} direction
   */
  go(axis, direction) {
    const target = this.shown && neighbour(this.samples, this.shown, axis, direction);
    if (target) this.show(target);
  }

  /** @param {KeyboardEvent} event */
  key(event) {
    // The graph behind the dialog has its own use for these keys.
    event.stopPropagation();
    if (event.target instanceof HTMLSelectElement && event.key !== "Escape") return;
    const move = KEYS[event.key];
    if (move) {
      event.preventDefault();
      if (move[0] === "step" && this.comparison.on) this.comparison.move(move[1]);
      else this.go(...move);
    } else if (event.key === "Escape") {
      event.preventDefault();
      this.close();
    }
  }

  /**
   * @param {string} name
   * @param {string} sign
   * @param {string} label
   * @param {() => void} onClick
   */
  button(name, sign, label, onClick) {
    const attributes = { type: "button", "aria-label": label, title: label };
    const button = html("button", name, attributes, [sign]);
    button.addEventListener("click", onClick);
    return button;
  }
}

/**
 * @param {readonly Sample[]} samples by step, then prompt
 * @param {Sample} from
 * @param {"step" | "prompt"} axis
 * @param {1 | -1} direction
 * @returns {Sample | null} the next image of the same prompt, or of the same step
 */
export function neighbour(samples, from, axis, direction) {
  const line = samples.filter((sample) =>
    axis === "step" ? sample.index === from.index : sample.step === from.step,
  );
  const at = line.findIndex((s) => s.step === from.step && s.index === from.index);
  return at < 0 ? null : (line[at + direction] ?? null);
}
