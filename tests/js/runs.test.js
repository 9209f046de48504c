// @ts-check
import { describe, expect, it } from "vitest";

import { differences, matching, sorted, toRows } from "../../js/runs/rows.js";

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
