import { describe, expect, test } from "vitest";
import { append, BUCKETS, emptySeries, extend, lastStep, nearest, smooth, strideFor } from "../../js/panel/series.js";

/** Points whose loss comes from a fixed linear congruence, so that a failure repeats. */
function noisy(count, from = 1) {
  let state = 12345;
  return Array.from({ length: count }, (_, i) => {
    state = (state * 1103515245 + 12345) % 2147483648;
    return [from + i, state / 2147483648, 1e-4];
  });
}

describe("smoothing", () => {
  /** The same average, as the weighted mean it stands for. */
  function weightedMean(values, weight, at) {
    let sum = 0;
    let weights = 0;
    for (let i = 0; i <= at; i++) {
      const share = weight ** (at - i);
      sum += share * values[i];
      weights += share;
    }
    return sum / weights;
  }

  test.each([0, 0.3, 0.9, 0.99])("with weight %s is the weighted mean of what came before", (weight) => {
    const values = noisy(60).map((point) => point[1]);
    smooth(values, weight).forEach((value, i) => {
      expect(value).toBeCloseTo(weightedMean(values, weight, i), 12);
    });
  });

  test("starts at the first value and leaves a constant alone", () => {
    expect(smooth([5, 1, 1], 0.9)[0]).toBeCloseTo(5, 12);
    for (const value of smooth(Array(50).fill(0.7), 0.95)) expect(value).toBeCloseTo(0.7, 12);
  });

  test("without the correction would begin far too low (negative control)", () => {
    const [uncorrected] = [0.1 * 5];
    expect(smooth([5], 0.9)[0]).not.toBeCloseTo(uncorrected, 1);
  });

  test("of nothing is nothing", () => {
    expect(smooth([], 0.9)).toEqual([]);
  });
});

describe("a series", () => {
  test("keeps every point of a short run as it came", () => {
    const points = noisy(BUCKETS);
    const { stride, buckets } = append(emptySeries(BUCKETS), points);
    expect(stride).toBe(1);
    expect(buckets.map((b) => [b.step, b.loss, b.rate])).toEqual(points);
  });

  test("stays bounded, keeps the mean, the extremes, the first and the last step", () => {
    const steps = 100_000;
    const points = noisy(steps);
    points[70_000][1] = 40;
    points[30_000][1] = -3;
    let series = emptySeries(steps);
    for (let i = 0; i < steps; i += 137) series = append(series, points.slice(i, i + 137));
    expect(series.buckets.length).toBeLessThanOrEqual(BUCKETS + 1);
    expect(lastStep(series)).toBe(steps);
    expect(Math.max(...series.buckets.map((b) => b.high))).toBe(40);
    expect(Math.min(...series.buckets.map((b) => b.low))).toBe(-3);
    const mean = points.reduce((sum, point) => sum + point[1], 0) / steps;
    const kept = series.buckets.reduce((sum, b) => sum + b.loss * b.count, 0) / steps;
    expect(kept).toBeCloseTo(mean, 9);
  });

  test("stays bounded when nobody said how long the run is", () => {
    let series = emptySeries(0);
    for (const point of noisy(30_000)) series = append(series, [point]);
    expect(series.buckets.length).toBeLessThanOrEqual(2 * BUCKETS);
    expect(series.buckets.reduce((sum, b) => sum + b.count, 0)).toBe(30_000);
  });

  test("does not depend on how the points were cut into messages", () => {
    const points = noisy(9000);
    const whole = append(emptySeries(9000), points);
    let pieces = emptySeries(9000);
    for (let i = 0; i < points.length; i += 7) pieces = append(pieces, points.slice(i, i + 7));
    expect(pieces.buckets.map((b) => [b.step, b.low, b.high, b.count])).toEqual(
      whole.buckets.map((b) => [b.step, b.low, b.high, b.count]),
    );
  });

  test("takes no point twice and none that is older", () => {
    const series = append(emptySeries(10), [[1, 1, null], [2, 2, null]]);
    expect(append(series, [[2, 9, null], [1, 9, null]])).toBe(series);
  });

  test.each([
    ["a loss that is not finite", [[3, NaN, 1], [4, Infinity, 1], [5, null, 1]]],
    ["text", [["3", "0.5", "1"]]],
    ["no list", { length: 3 }],
    ["entries that are not points", [null, 7, {}]],
  ])("leaves out %s", (_, points) => {
    const series = append(emptySeries(10), [[1, 1, null]]);
    expect(append(series, points)).toBe(series);
  });

  test("is not changed by what is appended to it", () => {
    const before = append(emptySeries(9000), noisy(100));
    const copy = structuredClone(before);
    append(before, noisy(50, 101));
    expect(before).toEqual(copy);
  });

  test("goes on with what another one knows beyond its end", () => {
    const first = append(emptySeries(100), noisy(10));
    const second = append(emptySeries(100), noisy(20));
    expect(extend(first, second).buckets).toEqual(second.buckets);
    expect(extend(second, first)).toBe(second);
  });

  test("has the smallest bucket width that keeps a run within the limit", () => {
    expect([0, 1, BUCKETS, BUCKETS + 1, 4 * BUCKETS, 100_000].map(strideFor)).toEqual([1, 1, 1, 2, 4, 64]);
  });
});

test("the nearest bucket is the one a search of all finds", () => {
  const { buckets } = append(emptySeries(0), [1, 2, 5, 9, 10, 40].map((s) => [s, 1, null]));
  for (let step = -2; step < 50; step += 0.5) {
    const distances = buckets.map((b) => Math.abs(b.step - step));
    expect(distances[nearest(buckets, step)]).toBe(Math.min(...distances));
  }
  expect(nearest([], 3)).toBe(-1);
});
