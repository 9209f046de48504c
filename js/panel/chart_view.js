// @ts-check
/** The loss curve as SVG: raw band, smoothed line, learning rate (from zero, a scale of its own), axes, and what the pointer is at. */

import { linePath, lossRange, meanPath, rateRange, scale, stepRange, ticks } from "./chart.js";
import { setAll, setText, svg } from "./dom.js";
import { formatNumber } from "./format.js";
import { nearest, smooth } from "./series.js";

/**
 * @typedef {import("./series.js").Bucket} Bucket
 * @typedef {import("./chart.js").Frame} Frame
 * @typedef {(value: number) => number} Scale
 *
 * @typedef {object} Drawing what was drawn last
 * @property {readonly Bucket[]} buckets
 * @property {readonly number[]} smoothed
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
    this.cursor = svg("line", "cursor");
    this.dot = svg("circle", "dot", { r: 3 });
    const clip = `adapter-trainer-clip-${clips++}`;
    this.clip = svg("rect", "");
    this.element = svg("svg", "chart", { role: "img" }, [
      this.title,
      svg("clipPath", "", { id: clip }, [this.clip]),
      this.axes,
      svg("g", "", { "clip-path": `url(#${clip})` }, [this.raw, this.rate, this.smoothed]),
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
   */
  draw(buckets, look, { width, height }) {
    const smoothed = smooth(buckets.map((bucket) => bucket.loss), look.smoothing);
    const frame = {
      left: EDGE.left,
      top: EDGE.top,
      right: Math.max(EDGE.left + 1, width - EDGE.right),
      bottom: Math.max(EDGE.top + 1, height - EDGE.bottom),
    };
    const steps = stepRange(buckets);
    const losses = lossRange(buckets, smoothed);
    const x = scale(steps, [frame.left, frame.right]);
    const y = scale(losses, [frame.bottom, frame.top]);
    this.drawing = { buckets, smoothed, frame, width, x, y };

    setAll(this.element, { viewBox: `0 0 ${width} ${height}` });
    setAll(this.clip, {
      x: frame.left,
      y: frame.top,
      width: frame.right - frame.left,
      height: frame.bottom - frame.top,
    });
    this.drawAxes(frame, steps, losses, x, y);
    this.drawLines(look, x, y);
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
    setText(this.title, `Loss, smoothed: from ${from} to ${to}`);
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
