// @ts-check
/** Two steps of a prompt over each other, with a line between them that a slider moves. */

import { html, setText } from "./dom.js";
import { stepName } from "./samples_view.js";

/** @typedef {import("./run.js").Sample} Sample */

const STRIDE = 5;

export class Comparison {
  /**
   * @param {HTMLImageElement} image of the step that is shown
   * @param {(sample: Sample, thumbnail: boolean) => string} imageUrl
   * @param {() => void} onChange wants everything drawn again
   */
  constructor(image, imageUrl, onChange) {
    this.image = image;
    this.imageUrl = imageUrl;
    this.on = false;
    /** Addresses of the clips that began together last. */
    this.together = "";
    /** The other step, where it was chosen. @type {number | null} */
    this.chosen = null;
    this.other = html("img", "other", { draggable: "false" });
    this.left = html("span", "tag-left");
    this.right = html("span", "tag-right");
    this.overlay = html("div", "overlay", {}, [this.other, html("div", "divider"), this.left, this.right]);
    this.frame = html("div", "frame", {}, [image, this.overlay]);
    this.box = html("input", "", { type: "checkbox" });
    this.steps = html("select", "steps", { "aria-label": "Compare with which step" });
    this.slider = html("input", "split", { type: "range", min: "0", max: "100", value: "50", "aria-label": "Where the images meet" });
    this.element = html("div", "compare", {}, [
      html("label", "", {}, [this.box, "Compare with"]), this.steps, this.slider,
    ]);
    this.box.addEventListener("change", () => {
      this.on = this.box.checked;
      onChange();
      if (this.on) this.slider.focus();
    });
    this.steps.addEventListener("change", () => {
      this.chosen = Number(this.steps.value);
      this.on = true;
      onChange();
    });
    this.slider.addEventListener("input", () => this.drawLine());
    this.frame.addEventListener("pointerdown", (event) => this.drag(event));
    this.frame.addEventListener("pointermove", (event) => {
      if (event.buttons & 1) this.drag(event);
    });
  }

  /**
   * @param {Sample} sample
   * @param {readonly Sample[]} samples by step
   */
  draw(sample, samples) {
    const others = samples.filter((s) => s.index === sample.index && s.step !== sample.step);
    this.element.hidden = others.length === 0;
    const other = others.find((s) => s.step === this.chosen) ?? others[0];
    const names = others.map((s) => stepName(s.step));
    const drawn = [...this.steps.options].map((option) => option.text);
    if (names.join("\n") !== drawn.join("\n")) {
      const options = others.map((s, i) => html("option", "", { value: String(s.step) }, [names[i]]));
      this.steps.replaceChildren(...options);
    }
    if (other) this.steps.value = String(other.step);
    this.box.checked = this.on;
    this.slider.hidden = !this.on;
    this.overlay.hidden = !this.on || !other;
    if (this.overlay.hidden || !other) {
      this.together = "";
      return;
    }
    const url = this.imageUrl(other, false);
    if (!this.other.getAttribute("src")?.startsWith(url)) this.other.src = url;
    if (other.filename.endsWith(".webp")) this.beginTogether([this.imageUrl(sample, false), url]);
    this.other.alt = stepName(other.step);
    setText(this.left, stepName(other.step));
    setText(this.right, stepName(sample.step));
    this.drawLine();
  }

  /**
   * Clips begin at the same time, so that equal moments lie side by side. A browser goes on with a
   * clip that it shows elsewhere, such as the thumbnail, and begins only under another address.
   *
   * @param {string[]} urls of the image that is shown, and of the other one
   */
  async beginTogether(urls) {
    const together = urls.join();
    if (together === this.together) return;
    this.together = together;
    const anew = urls.map((url) => `${url}&began=${Date.now()}`);
    const loaded = anew.map((src) => html("img", "", { src }).decode());
    await Promise.all(loaded).catch(() => {});
    if (together === this.together) [this.image.src, this.other.src] = anew;
  }

  drawLine() {
    this.overlay.style.setProperty("--adapter-trainer-split", `${this.slider.value}%`);
  }

  /** @param {1 | -1} direction */
  move(direction) {
    this.set(Number(this.slider.value) + STRIDE * direction);
  }

  /** @param {PointerEvent} event */
  drag(event) {
    const box = this.frame.getBoundingClientRect();
    if (this.on && box.width > 0) this.set((100 * (event.clientX - box.left)) / box.width);
  }

  /** @param {number} share percent from the left */
  set(share) {
    this.slider.value = String(Math.min(100, Math.max(0, Math.round(share))));
    this.drawLine();
  }
}
