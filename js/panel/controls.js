// @ts-check
/** What the reader may choose about the curve and the samples. */

import { html, setText } from "./dom.js";

/**
 * @typedef {object} Look kept with the node
 * @property {number} smoothing weight of the moving average, 0 to MAX_SMOOTHING
 * @property {boolean} showRate
 * @property {boolean} large whether the samples have most of the panel
 */

/** @type {Readonly<Look>} */
export const DEFAULT_LOOK = Object.freeze({ smoothing: 0.9, showRate: true, large: false });

export const MAX_SMOOTHING = 0.99;

export class Controls {
  /** @param {(look: Pick<Look, "smoothing" | "showRate">) => void} onChoice */
  constructor(onChoice) {
    const range = { type: "range", min: "0", max: String(MAX_SMOOTHING), step: "0.01" };
    this.slider = html("input", "slider", range);
    this.value = html("output", "");
    this.rate = html("input", "", { type: "checkbox" });
    const choose = () => {
      onChoice({ smoothing: Number(this.slider.value), showRate: this.rate.checked });
    };
    this.slider.addEventListener("input", choose);
    this.rate.addEventListener("change", choose);
    this.element = html("div", "controls", {}, [
      html("label", "", {}, ["Smoothing", this.slider, this.value]),
      html("label", "", {}, [this.rate, "Learning rate"]),
    ]);
  }

  /** @param {Look} look */
  draw(look) {
    if (Number(this.slider.value) !== look.smoothing) this.slider.value = String(look.smoothing);
    setText(this.value, look.smoothing.toFixed(2));
    this.rate.checked = look.showRate;
  }
}

/**
 * @param {unknown} stored what a workflow keeps; it may come from anybody
 * @returns {Look}
 */
export function toLook(stored) {
  const { smoothing, showRate, large } = /** @type {Partial<Look>} */ (stored ?? {});
  return {
    smoothing:
      typeof smoothing === "number" && Number.isFinite(smoothing)
        ? Math.min(MAX_SMOOTHING, Math.max(0, smoothing))
        : DEFAULT_LOOK.smoothing,
    showRate: typeof showRate === "boolean" ? showRate : DEFAULT_LOOK.showRate,
    large: large === true,
  };
}
