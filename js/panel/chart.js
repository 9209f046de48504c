// @ts-check
/**
 * The curve's geometry: scales, ticks and SVG paths as pure functions.
 *
 * @typedef {import("./series.js").Bucket} Bucket
 *
 * @typedef {object} Frame the drawing area inside the axes, in CSS pixels
 * @property {number} left
 * @property {number} top
 * @property {number} right
 * @property {number} bottom
 *
 * @typedef {[number, number]} Range
 */

/** Share of the highest raw values that may leave the image, so that a spike squeezes nothing. */
const OUTLIERS = 0.02;
/** With fewer values than this all are shown. */
const MANY = 20;
const MARGIN = 0.06;

/**
 * The loss values to show: all of the smoothed curve, and the raw values but for rare spikes.
 *
 * @param {readonly Bucket[]} buckets at least one
 * @param {readonly number[]} smoothed and others that have to be seen
 * @returns {Range}
 */
export function lossRange(buckets, smoothed) {
  const highs = buckets.map((bucket) => bucket.high).sort((a, b) => a - b);
  const cut = buckets.length < MANY ? 0 : Math.ceil(buckets.length * OUTLIERS);
  let low = buckets.reduce((least, bucket) => Math.min(least, bucket.low), Infinity);
  let high = highs[highs.length - 1 - cut];
  for (const value of smoothed) {
    low = Math.min(low, value);
    high = Math.max(high, value);
  }
  if (low === high) return [low - (Math.abs(low) || 1) / 2, high + (Math.abs(high) || 1) / 2];
  const margin = (high - low) * MARGIN;
  return [low >= 0 ? Math.max(0, low - margin) : low - margin, high + margin];
}

/**
 * The learning rates to show: from zero to a little above the highest.
 *
 * @param {readonly Bucket[]} buckets
 * @returns {Range}
 */
export function rateRange(buckets) {
  let high = 0;
  for (const bucket of buckets) high = Math.max(high, bucket.rate ?? 0);
  return [0, high > 0 ? high * 1.1 : 1];
}

/**
 * The steps to show. A single step gets a width, so that scales stay finite.
 *
 * @param {readonly Bucket[]} buckets
 * @returns {Range}
 */
export function stepRange(buckets) {
  const first = buckets[0]?.step ?? 0;
  const last = buckets.at(-1)?.step ?? 1;
  return first === last ? [first - 1, last + 1] : [first, last];
}

/**
 * @param {Range} domain
 * @param {Range} pixels
 * @returns {(value: number) => number}
 */
export function scale(domain, pixels) {
  const factor = (pixels[1] - pixels[0]) / (domain[1] - domain[0]);
  return (value) => pixels[0] + (value - domain[0]) * factor;
}

/**
 * Round values inside a range, at most `most` of them, whose distance is 1, 2 or 5 times a power
 * of ten, as small as that allows.
 *
 * @param {Range} range
 * @param {number} most at least 2
 * @param {boolean} [whole] whole numbers only
 * @returns {number[]}
 */
export function ticks([low, high], most, whole = false) {
  let power = 10 ** Math.floor(Math.log10((high - low) / most));
  if (whole) power = Math.max(1, power);
  for (;;) {
    for (const distance of [power, 2 * power, 5 * power]) {
      const first = Math.ceil(low / distance - 1e-9);
      const count = Math.floor(high / distance + 1e-9) - first + 1;
      if (count > most) continue;
      return Array.from({ length: Math.max(0, count) }, (_, i) =>
        Number(((first + i) * distance).toPrecision(12)),
      );
    }
    power *= 10;
  }
}

/**
 * A line through points, at most one lowest and one highest value for each pixel column.
 *
 * @param {readonly { x: number, low: number, high: number }[]} points pixels, by rising x; y grows
 *   downwards, `low` and `high` are the pixel heights of the lowest and highest value
 * @returns {string} an SVG path, empty without points
 */
export function linePath(points) {
  let path = "";
  let at = 0;
  while (at < points.length) {
    const column = Math.round(points[at].x);
    const x = points[at].x;
    let { low, high } = points[at];
    for (at++; at < points.length && Math.round(points[at].x) === column; at++) {
      low = Math.max(low, points[at].low);
      high = Math.min(high, points[at].high);
    }
    path += `${path ? "L" : "M"}${pixel(x)},${pixel(high)}`;
    if (low - high >= 0.05) path += `L${pixel(x)},${pixel(low)}`;
  }
  return path;
}

/**
 * A path through single values: the mean of those that fall into one pixel column.
 *
 * @param {readonly { x: number, y: number }[]} points pixels, by rising x
 * @returns {string}
 */
export function meanPath(points) {
  const means = [];
  let at = 0;
  while (at < points.length) {
    const start = at;
    const column = Math.round(points[at].x);
    let sum = 0;
    for (; at < points.length && Math.round(points[at].x) === column; at++) sum += points[at].y;
    const y = sum / (at - start);
    means.push({ x: points[at - 1].x, low: y, high: y });
  }
  return linePath(means);
}

/**
 * A line from point to point.
 *
 * @param {readonly (readonly [number, number])[]} points pixels
 * @returns {string} an SVG path, empty without points
 */
export function pointPath(points) {
  return points.map(([x, y], i) => `${i ? "L" : "M"}${pixel(x)},${pixel(y)}`).join("");
}

/** @param {number} value */
function pixel(value) {
  return String(Math.round(value * 10) / 10);
}
