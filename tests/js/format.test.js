import { expect, test } from "vitest";
import { formatDuration, formatNumber, formatStep, formatStepTime } from "../../js/panel/format.js";

test.each([
  [0, "0"], [0.123456, "0.1235"], [12.3, "12.3"], [1234.5, "1235"], [1, "1"], [-0.5, "-0.5"],
  [0.0001, "1e-4"], [0.000015, "1.5e-5"], [0.00012345, "1.234e-4"], [2.5e7, "2.5e7"], [1e-10, "1e-10"],
  [null, "–"], [undefined, "–"], [NaN, "–"], [Infinity, "–"],
])("the number %s reads %s", (value, text) => expect(formatNumber(value)).toBe(text));

test.each([
  [0, "0 s"], [8.4, "8 s"], [59.6, "1 min 00 s"], [125, "2 min 05 s"], [3600, "1 h 00 min"], [12_000, "3 h 20 min"],
  [187_200, "2 d 4 h"], [-3, "0 s"], [null, "–"],
])("%s seconds read %s", (value, text) => expect(formatDuration(value)).toBe(text));

test.each([[0.0421, "42 ms"], [0.42, "0.42 s"], [1.234, "1.2 s"], [12.34, "12.3 s"], [75, "1 min 15 s"], [null, "–"]])(
  "a step of %s seconds reads %s",
  (value, text) => expect(formatStepTime(value)).toBe(text),
);

test("a step is told with the steps where they are known", () => {
  expect(formatStep(3, 10)).toBe("3 / 10");
  expect(formatStep(3, 0)).toBe("3");
});
