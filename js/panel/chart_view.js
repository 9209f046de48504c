// @ts-check
/** The loss curve as SVG: raw band, smoothed line, learning rate (from zero, a scale of its own), axes, and what the pointer is at. */

import {
  linePath, lossRange, meanPath, pointPath, rateRange, scale, stepRange, ticks,
} from "./chart.js";
import { setAll, setText, svg } from "./dom.js";
import { formatNumber } from "./format.js";
import { bestOf } from "./run.js";
import { nearest, smooth } from "./series.js";

/**
 * @typedef {import("./series.js").Bucket} Bucket
 * @typedef {import("./chart.js").Frame} Frame
 * @typedef {import("./run.js").HeldOut} HeldOut
 * @typedef {(value: number) => number} Scale
 *
 * @typedef {object} Drawing what was drawn last
 * @property {readonly Bucket[]} buckets
 * @property {readonly number[]} smoothed
 * @property {readonly HeldOut[]} heldOut
 * @property {Frame} frame
 * @property {number} width
 * @property {Scale} x
 * @property {Scale} y
 */

const EDGE = { left: 48, top: 8, right: 10, bottom: 20 };
const TICK_HEIGHT = 26;
const TICK_WIDTH = 60;
let clips = 0;

export class ChartView {
  /** @param {(index: number) => void} onPoint told which bucket the pointer is at, -1 for none */
  constructor(onPoint) {
    this.onPoint = onPoint;
    /** @type {Drawing | null} */
    this.drawing = null;
    this.title = svg("title", "");
    this.axes = svg("g", "axes");
    this.raw = svg("path", "raw");
    this.smoothed = svg("path", "smoothed");
    this.rate = svg("path", "rate");
    this.heldOut = svg("path", "held-out");
    this.trained = svg("path", "trained");
    this.best = svg("g", "best");
    this.cursor = svg("line", "cursor");
    this.dot = svg("circle", "dot", { r: 3 });
    const clip = `adapter-trainer-clip-${clips++}`;
    this.clip = svg("rect", "");
    this.element = svg("svg", "chart", { role: "img" }, [
      this.title,
      svg("clipPath", "", { id: clip }, [this.clip]),
      this.axes,
      svg("g", "", { "clip-path": `url(#${clip})` }, [
        this.raw, this.rate, this.smoothed, this.trained, this.heldOut,
      ]),
      this.best,
      this.cursor,
      this.dot,
    ]);
    this.element.addEventListener("pointermove", (event) => this.point(event));
    this.element.addEventListener("pointerleave", () => this.unpoint());
    this.unpoint();
  }

  /**
   * @param {readonly Bucket[]} buckets at least one
   * @param {{ smoothing: number, showRate: boolean }} look
   * @param {{ width: number, height: number }} size CSS pixels
   * @param {readonly HeldOut[]} [heldOut] by rising step
   */
  draw(buckets, look, { width, height }, heldOut = []) {
    const smoothed = smooth(buckets.map((bucket) => bucket.loss), look.smoothing);
    const frame = {
      left: EDGE.left,
      top: EDGE.top,
      right: Math.max(EDGE.left + 1, width - EDGE.right),
      bottom: Math.max(EDGE.top + 1, height - EDGE.bottom),
    };
    const steps = stepRange(buckets);
    const measured = heldOut.flatMap(({ loss, trained }) => (trained === null ? [loss] : [loss, trained]));
    const losses = lossRange(buckets, [...smoothed, ...measured]);
    const x = scale(steps, [frame.left, frame.right]);
    const y = scale(losses, [frame.bottom, frame.top]);
    this.drawing = { buckets, smoothed, heldOut, frame, width, x, y };

    setAll(this.element, { viewBox: `0 0 ${width} ${height}` });
    setAll(this.clip, {
      x: frame.left,
      y: frame.top,
      width: frame.right - frame.left,
      height: frame.bottom - frame.top,
    });
    this.drawAxes(frame, steps, losses, x, y);
    this.drawLines(look, x, y);
    this.drawHeldOut(steps[0], x, y);
    this.describe();
  }

  /**
   * @param {{ smoothing: number, showRate: boolean }} look
   * @param {Scale} x
   * @param {Scale} y
   */
  drawLines(look, x, y) {
    if (!this.drawing) return;
    const { buckets, smoothed, frame } = this.drawing;
    const raw = buckets.map((b) => ({ x: x(b.step), low: y(b.low), high: y(b.high) }));
    const line = buckets.map((bucket, i) => ({ x: x(bucket.step), y: y(smoothed[i]) }));
    setAll(this.raw, { d: look.smoothing > 0 ? linePath(raw) : "" });
    setAll(this.smoothed, { d: look.smoothing > 0 ? meanPath(line) : linePath(raw) });

    const height = scale(rateRange(buckets), [frame.bottom, frame.top]);
    const rated = buckets.filter((bucket) => bucket.rate !== null);
    const points = rated.map((b) => ({ x: x(b.step), y: height(b.rate ?? 0) }));
    setAll(this.rate, { d: look.showRate ? meanPath(points) : "" });
  }

  /**
   * The losses on images that are held out and on trained ones, and a mark at the best step.
   *
   * @param {number} first step of the curve; what was measured before it stands at its left edge
   * @param {Scale} x
   * @param {Scale} y
   */
  drawHeldOut(first, x, y) {
    const heldOut = this.drawing?.heldOut ?? [];
    /** @type {(step: number, loss: number) => [number, number]} */
    const place = (step, loss) => [x(Math.max(step, first)), y(loss)];
    const trained = heldOut.filter((each) => each.trained !== null);
    setAll(this.heldOut, { d: pointPath(heldOut.map(({ step, loss }) => place(step, loss))) });
    setAll(this.trained, { d: pointPath(trained.map((e) => place(e.step, e.trained ?? 0))) });
    const best = bestOf(heldOut);
    const marks = [];
    if (best) {
      const [cx, cy] = place(best.step, best.loss);
      const title = svg("title", "", {}, [`Lowest on held-out images: step ${best.step}`]);
      marks.push(svg("circle", "best-mark", { cx, cy, r: 4 }, [title]));
    }
    this.best.replaceChildren(...marks);
  }

  /**
   * @param {Frame} frame
   * @param {[number, number]} steps
   * @param {[number, number]} losses
   * @param {Scale} x
   * @param {Scale} y
   */
  drawAxes(frame, steps, losses, x, y) {
    const parts = [];
    const rows = Math.max(3, Math.floor((frame.bottom - frame.top) / TICK_HEIGHT));
    for (const value of ticks(losses, rows)) {
      const at = y(value);
      parts.push(svg("line", "grid", { x1: frame.left, x2: frame.right, y1: at, y2: at }));
      const place = { x: frame.left - 6, y: at + 3.5, "text-anchor": "end" };
      parts.push(svg("text", "tick", place, [formatNumber(value, 3)]));
    }
    const columns = Math.max(3, Math.floor((frame.right - frame.left) / TICK_WIDTH));
    for (const value of ticks(steps, columns, true)) {
      const place = { x: x(value), y: frame.bottom + 14, "text-anchor": "middle" };
      parts.push(svg("text", "tick", place, [String(value)]));
    }
    this.axes.replaceChildren(...parts);
  }

  /** Says in words what the image shows. */
  describe() {
    if (!this.drawing) return;
    const { buckets, smoothed } = this.drawing;
    const last = buckets.length - 1;
    const from = `${formatNumber(smoothed[0])} at step ${buckets[0].step}`;
    const to = `${formatNumber(smoothed[last])} at step ${buckets[last].step}`;
    const best = bestOf(this.drawing.heldOut);
    const held = best
      ? `; on held-out images lowest at step ${best.step}: ${formatNumber(best.loss)}`
      : "";
    setText(this.title, `Loss, smoothed: from ${from} to ${to}${held}`);
  }

  /** @param {PointerEvent} event */
  point(event) {
    if (!this.drawing) return;
    const { buckets, smoothed, frame, width, x, y } = this.drawing;
    const box = this.element.getBoundingClientRect();
    // The canvas scales the panel, so that a screen pixel is not a pixel of the drawing.
    const at = ((event.clientX - box.left) * width) / (box.width || width);
    const share = (at - frame.left) / (frame.right - frame.left);
    const [first, last] = stepRange(buckets);
    const index = nearest(buckets, first + share * (last - first));
    if (index < 0) return;
    const place = x(buckets[index].step);
    setAll(this.cursor, { x1: place, x2: place, y1: frame.top, y2: frame.bottom });
    setAll(this.dot, { cx: place, cy: y(smoothed[index]) });
    this.cursor.style.display = "";
    this.dot.style.display = "";
    this.onPoint(index);
  }

  unpoint() {
    this.cursor.style.display = "none";
    this.dot.style.display = "none";
    this.onPoint(-1);
  }
}
