import { expect, test } from "vitest";
import { serverFrom } from "../../js/panel/server.js";
import { LABEL, addWorkflowButton } from "../../js/run/workflow.js";

const WORKFLOW = { nodes: [{ id: 1 }], links: [] };
const PROMPT = { 1: { class_type: "AdapterTrainerTrain", inputs: {} } };

/** A node of the frontend's shape, the pack's routes, and what the page was told. */
function setUp({ status = 200, body = JSON.stringify(WORKFLOW), run = "cats/v0", link = null } = {}) {
  const asked = [];
  const told = [];
  const fetchApi = async (route) => {
    asked.push(route);
    return new Response(body, { status });
  };
  const app = {
    loadGraphData: async (content, clean, view, name) => told.push(["workflow", content, name]),
    loadApiJson: async (content, name) => told.push(["prompt", content, name]),
    extensionManager: { toast: { add: (message) => told.push([message.severity, message.detail]) } },
  };
  const node = {
    widgets: [{ name: "run", value: run }],
    inputs: [{ name: "run", link }],
    addWidget(type, name, value, pressed, options) {
      const widget = { type, name, value, pressed, options };
      node.widgets.push(widget);
      return widget;
    },
  };
  addWorkflowButton(node, serverFrom({ fetchApi, apiURL: (route) => route }), app, (run) => told.push(["opened", run]));
  const button = node.widgets.at(-1);
  return { asked, told, node, app, button, press: () => button.pressed() };
}

test("the button is nothing that a workflow or a prompt saves, and there is one", () => {
  const { node, button, app } = setUp();
  expect([button.type, button.name, button.serialize]).toEqual(["button", LABEL, false]);
  expect(button.options.serialize).toBe(false);
  addWorkflowButton(node, serverFrom({}), app);
  expect(node.widgets.length).toBe(2);
});

test("the workflow of the chosen run is opened in a tab of its name", async () => {
  const { press, asked, told } = setUp({ run: "ca&ts/v10" });
  await press();
  expect(asked).toEqual(["/adapter_trainer/workflow?run=ca%26ts%2Fv10"]);
  expect(told).toEqual([["workflow", WORKFLOW, "ca&ts v10"], ["opened", "ca&ts/v10"]]);
});

test("a run that was started without a page gives its prompt", async () => {
  const { press, told } = setUp({ body: JSON.stringify(PROMPT) });
  await press();
  expect(told).toEqual([["prompt", PROMPT, "cats v0"], ["opened", "cats/v0"]]);
});

test.each(["[]", "{}", "null", '"x"', '{"1": 2}', '{"1": {"inputs": {}}}', "<html>", '{"nodes": 3}'])(
  "%s is not a workflow, and the graph stays",
  async (body) => {
    const { press, told } = setUp({ body });
    await press();
    expect(told).toEqual([["warn", "What is kept of this run is not a workflow."]]);
  },
);

test("the server's reason is shown", async () => {
  const refused = setUp({ status: 404, body: '{"reason": "cats/v0 has no workflow"}' });
  await refused.press();
  expect(refused.told).toEqual([["warn", "cats/v0 has no workflow"]]);
  const broken = setUp({ status: 500, body: "oops" });
  await broken.press();
  expect(broken.told).toEqual([["warn", "The server answered 500."]]);
});

test("a run that is linked or not chosen is not asked for", async () => {
  for (const given of [{ link: 7 }, { run: "" }, { run: null }]) {
    const { press, asked, told } = setUp(given);
    await press();
    expect(asked).toEqual([]);
    expect(told[0][0]).toBe("warn");
  }
});
