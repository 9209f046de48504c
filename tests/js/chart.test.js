import { describe, expect, test } from "vitest";
import { linePath, lossRange, meanPath, pointPath, rateRange, scale, stepRange, ticks } from "../../js/panel/chart.js";
import { append, emptySeries } from "../../js/panel/series.js";

function bucketsOf(values, rate = null) {
  return append(emptySeries(0), values.map((value, i) => [i + 1, value, rate])).buckets;
}

/** The points of a path, read back. */
function pointsOf(path) {
  return [...path.matchAll(/([ML])(-?[\d.]+),(-?[\d.]+)/g)].map(([, command, x, y]) => [command, Number(x), Number(y)]);
}

test("a scale goes through both ends", () => {
  const y = scale([2, 4], [100, 0]);
  expect([y(2), y(3), y(4)]).toEqual([100, 50, 0]);
});

describe("the loss range", () => {
  test("holds every value of a short run, and never goes below zero by itself", () => {
    const [low, high] = lossRange(bucketsOf([0.01, 0.5, 3]), [0.01, 0.3, 1]);
    expect(low).toBe(0);
    expect(high).toBeGreaterThan(3);
    expect(lossRange(bucketsOf([-1, 1]), [-1, 0])[0]).toBeLessThan(-1);
  });

  test("lets a rare spike leave the image, but not the smoothed curve", () => {
    const values = Array.from({ length: 200 }, (_, i) => 0.2 + 0.001 * (i % 7));
    values[50] = 90;
    const smoothed = values.map(() => 0.2);
    expect(lossRange(bucketsOf(values), smoothed)[1]).toBeLessThan(0.3);
    smoothed[51] = 9;
    expect(lossRange(bucketsOf(values), smoothed)[1]).toBeGreaterThan(9);
  });

  test.each([[[0.5]], [[0, 0, 0]], [[-2, -2]]])("of %j has a height", (values) => {
    const [low, high] = lossRange(bucketsOf(values), values);
    expect(high).toBeGreaterThan(low);
  });
});

test("steps and rates have ranges for one point and for none", () => {
  expect(stepRange(bucketsOf([1]))).toEqual([0, 2]);
  expect(stepRange([])).toEqual([0, 1]);
  expect(rateRange(bucketsOf([1]))).toEqual([0, 1]);
  expect(rateRange(bucketsOf([1, 2], 1e-3))[1]).toBeGreaterThan(1e-3);
});

test.each([[0, 1, 5], [0.013, 0.87, 4], [1, 100_000, 6], [-3, 2, 3], [1e-7, 3e-7, 5], [0.2, 0.2000001, 3]])(
  "ticks between %s and %s are inside, evenly spaced, and at most %s",
  (low, high, most) => {
    const found = ticks([low, high], most);
    expect(found.length).toBeLessThanOrEqual(most);
    expect(found.length).toBeGreaterThanOrEqual(1);
    const distance = found.length > 1 ? found[1] - found[0] : 1;
    found.forEach((value, i) => {
      expect(value).toBeGreaterThanOrEqual(low - distance * 1e-6);
      expect(value).toBeLessThanOrEqual(high + distance * 1e-6);
      if (i) expect(value - found[i - 1]).toBeCloseTo(distance, 9);
    });
  },
);

test("ticks of steps are whole numbers", () => {
  expect(ticks([1, 3], 6, true)).toEqual([1, 2, 3]);
});

describe("a line", () => {
  test("goes through its points", () => {
    const path = linePath([{ x: 0, low: 5, high: 5 }, { x: 10, low: 2.25, high: 2.25 }]);
    expect(pointsOf(path)).toEqual([["M", 0, 5], ["L", 10, 2.3]]);
  });

  test("of very many points has at most two per pixel column and keeps the spike", () => {
    const points = Array.from({ length: 50_000 }, (_, i) => ({ x: i / 200, low: 50, high: 40 }));
    points[31_234].high = 1;
    const read = pointsOf(linePath(points));
    expect(read.length).toBeLessThanOrEqual(2 * 252);
    expect(Math.min(...read.map((point) => point[2]))).toBe(1);
    expect(read.filter((point) => point[0] === "M")).toHaveLength(1);
  });

  test("of means has one point per pixel column", () => {
    const points = Array.from({ length: 1000 }, (_, i) => ({ x: i / 100, y: i % 2 ? 10 : 20 }));
    const read = pointsOf(meanPath(points));
    expect(read.length).toBeLessThanOrEqual(11);
    for (const [, , y] of read) expect(y).toBeCloseTo(15, 0);
  });

  test("of nothing is empty", () => {
    expect(linePath([])).toBe("");
    expect(meanPath([])).toBe("");
  });
});

test("a path goes from point to point", () => {
  expect(pointPath([])).toBe("");
  expect(pointsOf(pointPath([[1, 2], [3.04, 4.06], [5, 6]]))).toEqual([["M", 1, 2], ["L", 3, 4.1], ["L", 5, 6]]);
});
