// @ts-check
/** Curves of several runs over each other as SVG; a dashed line is the loss on held-out images. */

import { linePath, lossRange, meanPath, pointPath, scale, stepRange, ticks } from "../panel/chart.js";
import { html, setAll, setText, svg } from "../panel/dom.js";
import { formatNumber } from "../panel/format.js";
import { smooth } from "../panel/series.js";
import { CURVES } from "./curves.js";
import { t } from "./texts.js";

/**
 * @typedef {import("../panel/series.js").Bucket} Bucket
 *
 * @typedef {object} Line
 * @property {string} run
 * @property {readonly Bucket[]} buckets
 * @property {readonly { step: number, loss: number }[]} heldOut
 */

const EDGE = { left: 46, top: 6, right: 8, bottom: 18 };
const SIZE = { width: 360, height: 190 };
const CLIP = "adapter-trainer-runs-clip";
const NONE = t("None of these runs has measured it.");

export class Overlay {
  /** @param {() => void} onChoice told when another curve is wanted */
  constructor(onChoice) {
    const view = { role: "img", viewBox: `0 0 ${SIZE.width} ${SIZE.height}` };
    const area = { x: EDGE.left, y: EDGE.top, width: SIZE.width - EDGE.left - EDGE.right, height: SIZE.height - EDGE.top - EDGE.bottom };
    this.axes = svg("g", "");
    this.lines = svg("g", "", { "clip-path": `url(#${CLIP})` });
    const clip = svg("clipPath", "", { id: CLIP }, [svg("rect", "", area)]);
    this.chart = svg("svg", "runs-chart", view, [clip, this.axes, this.lines]);
    this.choice = html("select", "runs-curve", { "aria-label": t("Curve") },
      CURVES.map(({ name, label }) => html("option", "", { value: name }, [t(label)])));
    this.choice.addEventListener("change", onChoice);
    this.log = html("input", "", { type: "checkbox" });
    this.log.addEventListener("change", () => this.draw(this.shown));
    const label = html("label", "runs-log", {}, [this.log, t("Logarithmic")]);
    this.none = html("p", "runs-none", {}, [t(NONE)]);
    this.element = html("div", "runs-overlay", {}, [
      html("div", "runs-curves", {}, [this.choice, label]), this.chart, this.none,
    ]);
    /** @type {readonly Line[]} */
    this.shown = [];
  }

  get curve() {
    return CURVES[Math.max(0, this.choice.selectedIndex)];
  }

  /** @param {readonly Line[]} lines the colour of each is that of its place */
  draw(lines) {
    this.shown = lines;
    const { smoothing, label, name } = this.curve;
    const logarithmic = this.log.checked;
    const drawable = (/** @type {number} */ value) => !logarithmic || value > 0;
    const drawn = lines.map(({ run, buckets, heldOut }, place) => {
      const values = smooth(buckets.map((bucket) => bucket.loss), smoothing);
      const points = buckets.map((bucket, i) => ({ bucket, value: values[i] }))
        .filter(({ bucket, value }) => drawable(smoothing ? value : bucket.low));
      const held = name === "loss" ? heldOut.filter(({ loss }) => drawable(loss)) : [];
      return { run, place, points, held };
    }).filter(({ points }) => points.length > 0);
    this.none.hidden = drawn.length > 0;
    this.chart.style.display = drawn.length ? "" : "none";
    if (!drawn.length) return;

    const toHeight = (/** @type {number} */ value) => (logarithmic ? Math.log10(value) : value);
    const shown = drawn.flatMap(({ points, held }) => [
      ...points.map(({ bucket, value }) => (smoothing ? [value, value] : [bucket.low, bucket.high])),
      ...held.map(({ loss }) => [loss, loss]),
    ]);
    const heights = shown.map(([low, high]) => /** @type {Bucket} */ ({ low: toHeight(low), high: toHeight(high) }));
    const range = lossRange(heights, []);
    const steps = stepRange(drawn.flatMap(({ points }) => points.map(({ bucket }) => bucket)).sort((a, b) => a.step - b.step));
    const x = scale(steps, [EDGE.left, SIZE.width - EDGE.right]);
    const height = scale(range, [SIZE.height - EDGE.bottom, EDGE.top]);
    const y = (/** @type {number} */ value) => height(toHeight(value));

    /** @type {SVGElement[]} */
    const parts = ticks(range, 5).flatMap((value) => [
      svg("line", "grid", { x1: EDGE.left, x2: SIZE.width - EDGE.right, y1: height(value), y2: height(value) }),
      svg("text", "tick", { x: EDGE.left - 5, y: height(value) + 3.5, "text-anchor": "end" }, [
        formatNumber(logarithmic ? 10 ** value : value, 3),
      ]),
    ]);
    for (const value of ticks(steps, 5, true)) {
      // The last number ends with the chart.
      const isLast = x(value) > SIZE.width - EDGE.right - 8;
      const at = { x: isLast ? SIZE.width : x(value), y: SIZE.height - 5, "text-anchor": isLast ? "end" : "middle" };
      parts.push(svg("text", "tick", at, [String(value)]));
    }
    this.axes.replaceChildren(...parts);
    this.lines.replaceChildren(...drawn.flatMap(({ place, points, held }) => {
      const line = smoothing
        ? meanPath(points.map(({ bucket, value }) => ({ x: x(bucket.step), y: y(value) })))
        : linePath(points.map(({ bucket }) => ({ x: x(bucket.step), low: y(bucket.low), high: y(bucket.high) })));
      const color = { "data-run": String(place) };
      const dashed = pointPath(held.map(({ step, loss }) => /** @type {const} */ ([x(Math.max(step, steps[0])), y(loss)])));
      // A single value is a dot.
      const d = line.includes("L") ? line : `${line}h0.1`;
      return [svg("path", "runs-line", { d, ...color }), svg("path", "runs-held-out", { d: dashed, ...color })];
    }));
    const text = drawn.map(({ run, points }) => `${run}: ${formatNumber(points.at(-1)?.value)}`);
    setAll(this.chart, { "aria-label": t("{curve} at the last step. {runs}", { curve: t(label), runs: text.join("; ") }) });
    setText(this.none, t(NONE));
  }
}
