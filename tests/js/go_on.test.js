// @ts-check
import { expect, it } from "vitest";

import { GoOn, trains } from "../../js/runs/go_on.js";

const train = { type: "AdapterTrainerTrain", inputs: [], widgets_values: ["cats", 500] };
const sweep = { type: "AdapterTrainerSweep", inputs: [], widgets_values: ["cats", 500] };

it.each([
  [{ nodes: [train] }, true],
  [{ nodes: [sweep] }, false],
  [{ nodes: [sweep, { ...train, widgets_values: ["dogs"] }] }, false],
  [{ nodes: [{ ...train, widgets_values: ["dogs"], inputs: [{ name: "name", link: 3 }] }] }, true],
  [{ nodes: [{ type: "AdapterTrainerQuick", widgets_values: ["input/cats", ""] }] }, true],
  [{ nodes: [{ ...train, widgets_values: ["dogs", ""] }] }, false],
  [{ nodes: [], definitions: { subgraphs: [{ nodes: [train] }] } }, true],
  [{ 1: { class_type: "AdapterTrainerQuick", inputs: { name: "cats" } } }, true],
  [{ 1: { class_type: "AdapterTrainerQuick", inputs: { name: ["2", 0] } } }, true],
  [{ 1: { class_type: "AdapterTrainerSweep", inputs: { name: "cats" } } }, false],
  [{ nodes: 3 }, false],
  [null, false],
  [[null, 1], false],
])("knows of %j whether it trains the run", (content, expected) => {
  expect(trains(content, "cats")).toBe(expected);
});

it("leaves the canvas as it is where a trial's workflow has no node for it", async () => {
  const replaced = [];
  const node = { comfyClass: "AdapterTrainerTrain", widgets: [{ name: "name", value: "cats" }] };
  const app = {
    graph: { nodes: [node] },
    loadGraphData: async () => replaced.push("canvas"),
    extensionManager: { toast: { add() {} } },
  };
  const asked = [];
  const api = {
    fetchApi: async (_route, options) => {
      asked.push(options.body);
      return new Response("{}", { status: 404 });
    },
  };
  const server = { workflow: async () => ({ nodes: [sweep] }) };
  // @ts-expect-error a part of what ComfyUI has
  expect(await new GoOn(app, api, server).open("cats/v3")).toBe(node);
  expect(asked).toEqual([JSON.stringify({ run: "cats/v3" })]);
  expect(replaced).toEqual([]);
});
