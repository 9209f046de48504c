// @ts-check
/** Loss curves of several runs over each other as SVG; a dashed line is the loss on held-out images. */

import { meanPath, pointPath, scale, stepRange, ticks } from "../panel/chart.js";
import { html, setAll, svg } from "../panel/dom.js";
import { formatNumber } from "../panel/format.js";
import { smooth } from "../panel/series.js";

/** @typedef {import("../panel/run.js").Run} Run */

const EDGE = { left: 46, top: 6, right: 8, bottom: 18 };
const SIZE = { width: 360, height: 190 };
const SMOOTHING = 0.9;

export class Overlay {
  constructor() {
    const view = { role: "img", viewBox: `0 0 ${SIZE.width} ${SIZE.height}` };
    this.chart = svg("svg", "runs-chart", view);
    this.log = html("input", "", { type: "checkbox" });
    this.log.addEventListener("change", () => this.draw(this.runs));
    const label = html("label", "runs-log", {}, [this.log, "Logarithmic"]);
    this.element = html("div", "runs-overlay", {}, [this.chart, label]);
    /** @type {readonly Run[]} */
    this.runs = [];
  }

  /** @param {readonly Run[]} runs the colour of each is that of its place */
  draw(runs) {
    this.runs = runs;
    const curves = runs.map((run) => curveOf(run)).filter((curve) => curve.points.length > 0);
    this.element.hidden = curves.length === 0;
    if (!curves.length) return;
    const toHeight = this.log.checked ? Math.log10 : (/** @type {number} */ loss) => loss;
    const drawable = (/** @type {[number, number][]} */ points) =>
      points.filter(([, loss]) => !this.log.checked || loss > 0);
    const points = curves.flatMap((curve) => drawable([...curve.points, ...curve.heldOut]));
    const losses = points.map(([, loss]) => toHeight(loss));
    const low = Math.min(...losses);
    const high = Math.max(...losses);
    const margin = (high - low || Math.abs(low) || 1) * 0.06;
    /** @type {[number, number]} */
    const range = [low - margin, high + margin];
    const steps = stepRange(curves.flatMap((curve) => curve.buckets).sort((a, b) => a.step - b.step));
    const x = scale(steps, [EDGE.left, SIZE.width - EDGE.right]);
    const y = scale(range, [SIZE.height - EDGE.bottom, EDGE.top]);
    const place = (/** @type {[number, number]} */ [step, loss]) =>
      /** @type {[number, number]} */ ([x(Math.max(step, steps[0])), y(toHeight(loss))]);

    /** @type {SVGElement[]} */
    const parts = ticks(range, 5).flatMap((value) => [
      svg("line", "grid", { x1: EDGE.left, x2: SIZE.width - EDGE.right, y1: y(value), y2: y(value) }),
      svg("text", "tick", { x: EDGE.left - 5, y: y(value) + 3.5, "text-anchor": "end" }, [
        formatNumber(this.log.checked ? 10 ** value : value, 3),
      ]),
    ]);
    for (const value of ticks(steps, 5, true)) {
      const at = { x: x(value), y: SIZE.height - 5, "text-anchor": "middle" };
      parts.push(svg("text", "tick", at, [String(value)]));
    }
    curves.forEach((curve) => {
      const line = drawable(curve.points).map(place).map(([left, top]) => ({ x: left, y: top }));
      const color = { "data-run": String(runs.indexOf(curve.run)) };
      parts.push(svg("path", "runs-line", { d: meanPath(line), ...color }));
      const held = pointPath(drawable(curve.heldOut).map(place));
      parts.push(svg("path", "runs-held-out", { d: held, ...color }));
    });
    const text = curves.map(({ run, points: [...all] }) => `${run.version}: ${formatNumber(all.at(-1)?.[1])}`);
    setAll(this.chart, { "aria-label": `Loss, smoothed, at the last step. ${text.join("; ")}` });
    this.chart.replaceChildren(...parts);
  }
}

/** @param {Run} run */
function curveOf(run) {
  const { buckets } = run.series;
  const losses = smooth(buckets.map((bucket) => bucket.loss), SMOOTHING);
  const points = buckets.map((bucket, i) => /** @type {[number, number]} */ ([bucket.step, losses[i]]));
  const heldOut = run.heldOut.map(({ step, loss }) => /** @type {[number, number]} */ ([step, loss]));
  return { run, buckets, points, heldOut };
}
