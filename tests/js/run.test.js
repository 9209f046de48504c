import { describe, expect, test } from "vitest";
import { bestOf, fromSnapshot, isActive, MAX_SAMPLES, NO_RUN, withProgress, withSample } from "../../js/panel/run.js";
import { memory, sampleAt, snapshot } from "./messages.js";

test("a snapshot is a run", () => {
  const run = fromSnapshot(snapshot({ step: 2, points: [[1, 0.9, 1e-4], [2, 0.8, 2e-4]], samples: [sampleAt(1)] }));
  expect(run).toMatchObject({ status: "training", step: 2, steps: 100, name: "my_adapter", promptId: "p1" });
  expect(run.series.buckets.map((b) => b.loss)).toEqual([0.9, 0.8]);
  expect(run.samples).toEqual([sampleAt(1)]);
  expect(isActive(run)).toBe(true);
});

test.each([null, undefined, {}, [], "training", { status: "idle" }, { status: "evil" }])(
  "%j is not a snapshot",
  (payload) => expect(fromSnapshot(payload)).toBeNull(),
);

test("wrong types in a snapshot become nothing", () => {
  const run = fromSnapshot({
    status: "done", step: "7", steps: -1, points: "x", samples: [{}, 3, { step: 1 }], step_seconds: "fast",
    seconds_left: NaN, message: { html: "<b>" }, warnings: [1, "mind"], name: 5, prompt_id: null,
    memory: { rows: "fp8" },
  });
  expect(run).toEqual({ ...NO_RUN, status: "done", warnings: ["mind"] });
});

describe("losses on held-out images", () => {
  test("come with the snapshot and with progress, later ones only", () => {
    let run = fromSnapshot(snapshot({ held_out: [[0, 0.9, null], [10, 0.5, 0.4]] }));
    run = withProgress(run, { held_out: [[10, 0.1, 0.1], [20, 0.6, 0.3]] });
    expect(run.heldOut).toEqual([
      { step: 0, loss: 0.9, trained: null }, { step: 10, loss: 0.5, trained: 0.4 }, { step: 20, loss: 0.6, trained: 0.3 },
    ]);
    expect(bestOf(run.heldOut)).toEqual({ step: 10, loss: 0.5, trained: 0.4 });
  });

  test("stay when messages overtake a snapshot", () => {
    const early = snapshot({ held_out: [[10, 0.5, 0.4]] });
    const run = withProgress(fromSnapshot(early), { held_out: [[20, 0.6, null]] });
    expect(fromSnapshot(early, run).heldOut.map((each) => each.step)).toEqual([10, 20]);
  });

  test("that are none are left out", () => {
    const held = [[1], [2, "x", 1], null, 7, [-1, 1, 1], [3, NaN, 1], [4, 0.5, "x"], [4, 0.2, 0.1]];
    expect(fromSnapshot(snapshot({ held_out: held })).heldOut).toEqual([{ step: 4, loss: 0.5, trained: null }]);
    expect(fromSnapshot(snapshot({ held_out: "x" })).heldOut).toEqual([]);
  });

  test("before training are not the best", () => {
    expect(bestOf([])).toBe(null);
    expect(bestOf([{ step: 0, loss: 0.1, trained: null }])).toBe(null);
    const two = [{ step: 0, loss: 0.1, trained: null }, { step: 5, loss: 0.3, trained: null }, { step: 9, loss: 0.3, trained: null }];
    expect(bestOf(two)?.step).toBe(5);
  });
});

describe("a run that goes back", () => {
  const points = [[1, 1, 1e-4], [2, 0.9, 1e-4], [3, 9, 1e-4]];
  const first = snapshot({ step: 3, points, held_out: [[1, 0.5, null], [3, 7, null]], samples: [sampleAt(1), sampleAt(3)] });
  const after = snapshot({ step: 1, returns: 1, points: points.slice(0, 1), held_out: [[1, 0.5, null]], samples: [sampleAt(1)] });
  const steps = (run) => run.series.buckets.map((each) => each.step);

  test("keeps nothing of the steps that are given up", () => {
    const run = fromSnapshot(after, fromSnapshot(first));
    expect(steps(run)).toEqual([1]);
    expect(run.heldOut.map((each) => each.step)).toEqual([1]);
    expect(run.samples).toEqual([sampleAt(1)]);
    const next = withProgress(run, { status: "training", step: 2, returns: 1, points: [[2, 0.8, 1e-5]] });
    expect(next.series.buckets.map((each) => each.loss)).toEqual([1, 0.8]);
  });

  test("takes nothing that was sent before and comes later", () => {
    const run = fromSnapshot(after, fromSnapshot(first));
    expect(fromSnapshot(first, run)).toBe(run);
    expect(withProgress(run, { step: 4, returns: 0, points: [[4, 9, 1e-4]] })).toBe(run);
  });

  test("shows what overtakes the snapshot, and all behind it", () => {
    const early = withProgress(fromSnapshot(first), { step: 2, returns: 1, points: [[2, 0.8, 1e-5]] });
    expect(steps(early)).toEqual([2]);
    expect(early.samples).toEqual([]);
    const run = fromSnapshot(after, early);
    expect(run.series.buckets.map((each) => each.loss)).toEqual([1, 0.8]);
  });

  test("is another one in another prompt", () => {
    const run = fromSnapshot(after, fromSnapshot(first));
    expect(steps(fromSnapshot({ ...first, prompt_id: "p2" }, run))).toEqual([1, 2, 3]);
  });
});

test("progress adds points and keeps what it does not mention", () => {
  const run = fromSnapshot(snapshot({ points: [[1, 1, 1e-4]], samples: [sampleAt(0)], warnings: ["mind"] }));
  const next = withProgress(run, {
    status: "training", step: 3, steps: 100, points: [[2, 0.5, 1e-4], [3, 0.4, 1e-4]], step_seconds: 0.5, seconds_left: 48.5, message: "m",
  });
  expect(next.series.buckets).toHaveLength(3);
  expect(next).toMatchObject({ step: 3, stepSeconds: 0.5, secondsLeft: 48.5, message: "m", warnings: ["mind"] });
  expect(next.samples).toBe(run.samples);
  expect(run.series.buckets).toHaveLength(1);
});

test("an unknown status leaves the status alone", () => {
  const run = fromSnapshot(snapshot());
  expect(withProgress(run, { status: "<img>" }).status).toBe("training");
});

test("before the first step nothing is known of the time left", () => {
  expect(fromSnapshot(snapshot({ step_seconds: 0, seconds_left: 0 }))).toMatchObject({ stepSeconds: null, secondsLeft: null });
});

test("a run that loads its base is active", () => {
  const run = fromSnapshot(snapshot({ status: "loading" }));
  expect(run).toMatchObject({ status: "loading" });
  expect(isActive(run)).toBe(true);
  expect(isActive(fromSnapshot(snapshot({ status: "done" })))).toBe(false);
});

describe("a snapshot that was overtaken by messages", () => {
  const early = snapshot({ step: 1, points: [[1, 1, 1e-4]], samples: [sampleAt(0)] });

  test("keeps the points and images that came since", () => {
    let run = withProgress(fromSnapshot(early), { step: 2, points: [[2, 0.5, 1e-4]] });
    run = withSample(run, sampleAt(2));
    const after = fromSnapshot(early, run);
    expect(after.series.buckets.map((b) => b.step)).toEqual([1, 2]);
    expect(after.samples.map((s) => s.step)).toEqual([0, 2]);
  });

  test("of another prompt starts anew", () => {
    const run = withProgress(fromSnapshot(early), { step: 2, points: [[2, 0.5, 1e-4]] });
    const after = fromSnapshot(snapshot({ prompt_id: "p2", points: [[1, 3, 1e-4]] }), run);
    expect(after.series.buckets.map((b) => b.loss)).toEqual([3]);
    expect(after.samples).toEqual([]);
  });
});

describe("samples", () => {
  test("are in the order of steps and prompts, however they came", () => {
    let run = fromSnapshot(snapshot());
    for (const [step, index] of [[20, 1], [10, 0], [20, 0], [10, 1]]) run = withSample(run, sampleAt(step, index));
    expect(run.samples.map((s) => [s.step, s.index])).toEqual([[10, 0], [10, 1], [20, 0], [20, 1]]);
  });

  test("of the same step and prompt replace each other", () => {
    const again = { ...sampleAt(5), filename: "again.png" };
    expect(withSample(withSample(fromSnapshot(snapshot()), sampleAt(5)), again).samples).toEqual([again]);
  });

  test("are bounded, and the newest stay", () => {
    let run = fromSnapshot(snapshot());
    for (let step = 0; step < 2 * MAX_SAMPLES; step++) run = withSample(run, sampleAt(step));
    expect(run.samples.length).toBeLessThanOrEqual(MAX_SAMPLES);
    expect(run.samples.at(-1).step).toBe(2 * MAX_SAMPLES - 1);
    expect(run.samples[0].step).toBe(0);
  });
});

describe("the memory plan", () => {
  test("stays while the run goes on, and goes with the next run", () => {
    const run = fromSnapshot(snapshot({ memory: memory() }));
    expect(run.memory.rows.map((row) => row.swapped)).toEqual([20, 40, 0]);
    expect(withSample(withProgress(run, { step: 3 }), sampleAt(3)).memory).toBe(run.memory);
    expect(fromSnapshot(snapshot({ prompt_id: "p2" }), run).memory).toBeNull();
  });

  test("of wrong types is nothing, or numbers that are zero", () => {
    for (const wrong of [null, 3, [], {}, { rows: [] }]) expect(fromSnapshot(snapshot({ memory: wrong })).memory).toBeNull();
    const [row] = fromSnapshot(snapshot({ memory: { rows: [{ seconds: "fast", device_bytes: -1 }, 5] } })).memory.rows;
    expect(row).toMatchObject({ format: "", deviceBytes: 0, seconds: null });
  });
});
