// @ts-check
import { describe, expect, it, vi } from "vitest";

import { CurveStore } from "../../js/runs/curves.js";
import { formatBytes, lossOf, toDisk } from "../../js/runs/disk.js";
import { queueLines, toQueue } from "../../js/runs/queue.js";
import { NO_RUN } from "../../js/panel/run.js";
import { differences, matching, sorted, toRows } from "../../js/runs/rows.js";
import { loadTexts, t } from "../../js/runs/texts.js";

const rows = toRows({
  runs: [
    { run: "cat/v10", status: "done", loss: 0.2, changed: 3, tags: ["red"], note: "Good" },
    { run: "cat/v2", status: "failed", loss: "none", changed: 5, favourite: true, tags: "x" },
    { run: "dog/v0", status: "running", loss: 0.9, changed: 1, sample: { filename: "0.png" } },
    { status: "done" },
    null,
  ],
});

const names = (/** @type {import("../../js/runs/rows.js").Row[]} */ found) => found.map((row) => row.run);

describe("the list of runs", () => {
  it("takes what is a run, and nothing for what is none", () => {
    expect(names(rows)).toEqual(["cat/v10", "cat/v2", "dog/v0"]);
    expect(rows[1]).toMatchObject({ loss: null, tags: [], note: "", sample: null });
    expect(rows[2].sample?.filename).toBe("0.png");
    expect(toRows("none")).toEqual([]);
  });

  it("finds runs that have every word in name, status, tag or note", () => {
    expect(names(matching(rows, "CAT done"))).toEqual(["cat/v10"]);
    expect(names(matching(rows, "red good"))).toEqual(["cat/v10"]);
    expect(names(matching(rows, " "))).toHaveLength(3);
  });

  it("has what trains first, then favourites, then the order", () => {
    expect(names(sorted(rows, "newest"))).toEqual(["dog/v0", "cat/v2", "cat/v10"]);
    const plain = rows.map((row) => ({ ...row, favourite: false, status: "done" }));
    expect(names(sorted(plain, "name"))).toEqual(["cat/v2", "cat/v10", "dog/v0"]);
    expect(names(sorted(plain, "loss"))).toEqual(["cat/v10", "dog/v0", "cat/v2"]);
  });

  it("names settings that differ alone", () => {
    const settings = [{ a: 1, b: [1], c: "x" }, { a: 1, b: [2], d: null }];
    expect(differences(settings)).toEqual([["b", ["[1]", "[2]"]], ["c", ["x", "–"]]]);
  });
});

describe("what a run takes on the disk", () => {
  const use = (/** @type {number} */ count, /** @type {number} */ bytes) => ({ count, bytes });
  const disk = { checkpoints: use(3, 4.2e9), samples: use(40, 12.3e6), adapters: use(1, 5e7), rest: use(4, 900) };

  it("is said in units that people use", () => {
    expect([0, 999, 1000, 4.2e9, 12.3e6, 999_600].map(formatBytes)).toEqual(["0 bytes", "999 bytes", "1 kB", "4.2 GB", "12 MB", "1 MB"]);
    expect(toDisk({})).toBeNull();
  });

  it("names exactly what a clean-up loses", () => {
    expect(lossOf(disk, ["checkpoints"])).toBe("3 checkpoints, 4.2 GB; the adapter stays; it cannot be continued then.");
    const alone = { ...disk, adapters: use(0, 0), checkpoints: use(1, 10) };
    expect(lossOf(alone, ["checkpoints", "samples"])).toBe(
      "1 checkpoint, 10 bytes; its adapter is in them alone, and goes with them; it cannot be continued then. 40 images, 12 MB.");
    expect(lossOf(disk, ["run"])).toContain("1 adapter, 3 checkpoints, 40 images");
    expect(lossOf(disk, [])).toBe("Choose what to clean up.");
  });
});

describe("the queue", () => {
  const training = (/** @type {string} */ name, /** @type {number | null} */ seconds) => ({ name, steps: 100, seconds });
  const queue = toQueue({ queue: [
    { prompt_id: "1", runs: true, trainings: [training("cat", 60)] },
    { prompt_id: "2", runs: false, trainings: [training("dog", 30)] },
    { prompt_id: "3", runs: false, trainings: [] },
    { prompt_id: "4", runs: false, trainings: [{ ...training("owl", 10), steps: 0 }] },
  ] });

  it("says what waits for what, and an end where all before it is known", () => {
    const lines = queueLines(queue, (seconds) => `at ${seconds}`);
    expect(lines.map(({ name, text }) => [name, text])).toEqual([
      ["cat", "100 steps, runs, ends at 60, in 1 min 00 s"],
      ["dog", "100 steps, waits for cat, ends at 90, in 1 min 30 s"],
      ["owl", "waits for cat and 2 more"],
    ]);
    expect(queueLines(toQueue({ queue: [null] }), String)).toEqual([]);
  });
});

describe("a curve of a run that goes on", () => {
  it("is asked for whole once, and then for what follows", async () => {
    /** @type {unknown[][]} */
    const asked = [];
    const answers = [
      { points: [[4, 2, 1, 3, 4], ["x"]], course: "a", follows: false },
      { points: [[5, 9, 9, 9, 1]], course: "a", follows: true },
      { points: [[2, 1, 1, 1, 2]], course: "b", follows: false },
    ];
    const server = { curve: async (/** @type {unknown[]} */ ...question) => (asked.push(question), answers[asked.length - 1]) };
    const store = new CurveStore(/** @type {any} */ (server));
    const row = { ...rows[2], steps: 10 };
    const steps = [];
    for (let i = 0; i < 3; i++) steps.push((await store.of(row, NO_RUN, "norms")).map((bucket) => bucket.step));
    expect(steps).toEqual([[4], [4, 5], [2]]);
    expect(asked.map((each) => each.slice(2))).toEqual([[0, ""], [4, "a"], [5, "a"]]);
  });
});

describe("texts in another language", () => {
  const served = { zh: { adapterTrainer: { "{found} of {count} runs": "{count} 个中的 {found} 个" } } };
  const load = (/** @type {string} */ language) => {
    const fetchApi = vi.fn(async () => new Response(JSON.stringify(served)));
    const app = { extensionManager: { setting: { get: () => language } } };
    return loadTexts(/** @type {any} */ ({ fetchApi }), /** @type {any} */ (app)).then(() => fetchApi.mock.calls.length);
  };

  it("have their values in their own order, and stay English where there is none", async () => {
    expect(await load("zh")).toBe(1);
    expect(t("{found} of {count} runs", { found: 2, count: 5 })).toBe("5 个中的 2 个");
    expect(t("{run} is new", { run: "{count}" })).toBe("{count} is new");
    expect(t("constructor")).toBe("constructor");
    await load("fr");
    expect(t("{found} of {count} runs", { found: 2, count: 5 })).toBe("2 of 5 runs");
  });

  it("are asked for in no English page", async () => {
    expect(await load("en")).toBe(0);
  });
});
