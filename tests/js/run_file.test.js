import { expect, test } from "vitest";
import { openDropped } from "../../js/run_file/dropped.js";
import { layOut } from "../../js/run_file/frames.js";
import { told } from "../../js/run_file/open.js";

const RUN = "training: {steps: 3}";
const file = (name, text) => ({ name, text: async () => text, size: text.length, lastModified: 1 });

/** A page whose server knows files by their text, and what ComfyUI and the server were given. */
function setUp() {
  const [asked, passed, toasts] = [[], [], []];
  const api = {
    fetchApi: async (route, { body }) => {
      const { files } = JSON.parse(body);
      asked.push(files.map(({ name }) => name));
      const used = files.filter(({ text }) => text === RUN).map(({ name }) => name);
      if (files.some(({ text }) => text === "broken")) {
        const refused = { found: "steps is many", expected: "a number", remedy: "Correct it." };
        return new Response(JSON.stringify(refused), { status: 400 });
      }
      const graph = { nodes: {}, frames: [], notes: [], connect: false, files: used };
      return new Response(JSON.stringify({ ...graph, program: used.length ? "one" : "" }));
    },
  };
  const graph = { nodes: [], add() {}, updateExecutionOrder() {}, setDirtyCanvas() {} };
  const app = {
    canvas: { graph, emitBeforeChange() {}, emitAfterChange() {}, selectItems() {} },
    extensionManager: {
      toast: { add: (message) => toasts.push(message) },
      command: { execute: async () => {} },
    },
    handleFile: async (given, ...rest) => void passed.push([given.name, ...rest]),
  };
  const page = new EventTarget();
  openDropped(api, app, page);
  const drop = async (...files) => {
    const event = new Event("drop");
    event.dataTransfer = { files };
    page.dispatchEvent(event);
    for (const each of files) await app.handleFile(each, "file_drop", {});
  };
  return { asked, passed, toasts, app, drop };
}

test("a run file is opened, and what is none goes on to ComfyUI as it came", async () => {
  const { asked, passed, drop } = setUp();
  await drop(file("run.yaml", RUN));
  expect([asked, passed]).toEqual([[["run.yaml"]], []]);
  await drop(file("other.yaml", "a: 1"));
  expect(passed).toEqual([["other.yaml", "file_drop", {}]]);
});

test.each([
  ["a.png", "x"],
  ["w.json", '{"nodes": [], "links": []}'],
  ["p.json", '{"1": {"class_type": "X", "inputs": {}}}'],
  ["t.json", '{"templates": []}'],
  ["large.yaml", " ".repeat(2 ** 20 + 1)],
])("the server never sees %s", async (name, text) => {
  const { asked, passed, drop } = setUp();
  await drop(file(name, text));
  expect([asked, passed.length]).toEqual([[], 1]);
});

test("files that belong together are read once, and the rest of a drop goes on", async () => {
  const { asked, passed, toasts, drop, app } = setUp();
  const [one, other] = [file("data.toml", RUN), file("train.sh", RUN)];
  await drop(file("a.png", "x"), file("notes.txt", "x"), one, other);
  expect(asked).toEqual([["notes.txt", "data.toml", "train.sh"]]);
  expect(passed.map(([name]) => name)).toEqual(["a.png", "notes.txt"]);
  expect(toasts.map(({ detail }) => detail)).toEqual([
    "data.toml, train.sh were read as a run file of one. Ctrl+Z takes it back.",
  ]);
  // Opened again later, a file is not a leftover of that drop.
  await drop(file("x.yaml", "a: 1"));
  await app.handleFile(other, "file_button");
  expect(asked.at(-1)).toEqual(["train.sh"]);
});

test("a mistake is told in three parts, and ComfyUI is not asked as well", async () => {
  const { passed, toasts, drop } = setUp();
  await drop(file("run.yaml", "broken"));
  expect(passed).toEqual([]);
  expect(toasts[0].detail).toBe("steps is many\nExpected: a number\nTo do: Correct it.");
});

test("a file is named, what is to do, and the first of many notes", () => {
  const one = { program: "P", files: ["a"], connect: true, notes: [] };
  expect(told(one).detail).toBe("a was read as a run file of P. Connect CLIP and VAE. Ctrl+Z takes it back.");
  const many = told({ ...one, notes: Array.from({ length: 20 }, (_, at) => `n${at}`) });
  expect([many.severity, many.life]).toEqual(["warn", undefined]);
  expect(many.detail).toContain("- n11\n- and 8 more: adapter-trainer template --from a");
});

test("frames hold their nodes, below and beside one another", () => {
  window.LiteGraph = { LGraphGroup: class { constructor(title) { this.title = title; } } };
  const node = (size, pos = [0, 0]) => ({ size, pos, setSize(to) { this.size = to; } });
  const there = node([100, 100], [-50, 300]);
  const made = new Map(["a", "b", "c"].map((id, at) => [id, node([300 + 200 * at, 90])]));
  const groups = [];
  const graph = { nodes: [there, ...made.values()], add: (group) => groups.push(group), setDirtyCanvas() {} };
  layOut(graph, [{ title: "1", columns: [["a", "b"], []] }, { title: "2", columns: [["c", "gone"]] }], made);
  const [a, b, c] = made.values();
  expect(a.size[0]).toBe(400);
  expect(a.pos[1]).toBeGreaterThan(400 + 44);
  expect(b.pos[1]).toBeGreaterThan(a.pos[1] + a.size[1] + 30);
  for (const [group, inside] of [[groups[0], [a, b]], [groups[1], [c]]]) {
    for (const { pos, size } of inside) {
      expect(pos[0]).toBeGreaterThan(group.pos[0]);
      expect(pos[0] + size[0]).toBeLessThan(group.pos[0] + group.size[0]);
      expect(pos[1] + size[1]).toBeLessThan(group.pos[1] + group.size[1]);
    }
  }
  expect(groups[1].pos[0]).toBeGreaterThan(groups[0].pos[0] + groups[0].size[0]);
});
