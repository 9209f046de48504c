import { afterEach, beforeEach, describe, expect, it, vi } from "vitest";

import { ErrorBoxes, EVENT, inputsIn, nodeOf, panels } from "../../js/errors/boxes.js";
import { ErrorView, toError } from "../../js/errors/error_view.js";

const ERROR = { found: "f", expected: "e", remedy: "set unreadable to skip", input: "unreadable" };

/** A node as far as boxes use it. */
function makeNode(id = 7) {
  const node = {
    id,
    title: "Dataset From Folder",
    comfyClass: "Folder",
    graph: { getNodeById: () => node },
    size: [300, 100],
    inputs: [{ name: "clip", link: null }],
    widgets: [{ name: "unreadable", value: "error", hidden: true, options: {} }],
    computeSize: () => [200, 100 + 50 * (node.widgets.length - 1)],
    setSize: (size) => {
      node.size = [...size];
    },
    addDOMWidget(name, type, element) {
      const widget = { name, type, element };
      node.widgets.push(widget);
      return widget;
    },
    removeWidget(widget) {
      node.widgets.splice(node.widgets.indexOf(widget), 1);
    },
  };
  return node;
}

function makePage(node) {
  const toasts = [];
  const listeners = {};
  const app = {
    graph: { id: "w", nodes: [node] },
    extensionManager: { toast: { add: (message) => toasts.push(message) } },
  };
  const boxes = new ErrorBoxes(() => app);
  boxes.listen({ addEventListener: (type, listener) => (listeners[type] = listener) });
  const send = (type, detail) => listeners[type]({ detail });
  return { app, boxes, send, toasts };
}

beforeEach(() => {
  vi.useFakeTimers();
  vi.stubGlobal("ResizeObserver", class { observe() {} });
});

afterEach(() => {
  vi.useRealTimers();
  vi.unstubAllGlobals();
});

describe("an error", () => {
  it("has three parts, and is none without what was found", () => {
    expect(toError({ ...ERROR, node_id: "7" })).toEqual(ERROR);
    expect(toError({ found: "f", expected: 5 })).toEqual({ found: "f", expected: "", remedy: "", input: "" });
    for (const value of [null, {}, { found: "" }, "text", { found: 5 }]) expect(toError(value)).toBe(null);
  });

  it("is text, whatever it holds", () => {
    const view = new ErrorView();
    view.draw({ ...ERROR, found: "<img src=x>" });
    expect(view.element.querySelector("img")).toBe(null);
    expect(view.element.textContent).toContain("<img src=x>");
  });

  it("has a button for an input that is out of sight, and for no other", () => {
    const node = makeNode();
    const view = new ErrorView(inputsIn(node, {}));
    view.draw(ERROR);
    expect(view.button.hidden).toBe(false);
    view.button.click();
    expect(node.showAdvanced).toBe(true);
    node.widgets[0].hidden = false;
    view.draw(ERROR);
    expect(view.button.hidden).toBe(true);
    view.draw({ ...ERROR, input: "" });
    expect(view.button.hidden).toBe(true);
  });
});

describe("a box", () => {
  it("stands under its node, beside a toast, until an input changes", () => {
    const node = makeNode();
    const { boxes, send, toasts } = makePage(node);
    send(EVENT, { node_id: "7", ...ERROR });
    expect(node.widgets.map((each) => each.name)).toEqual(["unreadable", "error"]);
    expect(node.size[1]).toBe(150);
    expect(toasts[0].summary).toBe("Dataset From Folder");
    expect(toasts[0].detail).toBe("f\nExpected: e\nTo do: set unreadable to skip");
    vi.advanceTimersByTime(2000);
    expect(boxes.boxes.size).toBe(1);
    node.widgets[0].value = "skip";
    vi.advanceTimersByTime(2000);
    expect(node.widgets.map((each) => each.name)).toEqual(["unreadable"]);
    expect(node.size[1]).toBe(100);
    expect(boxes.timer).toBe(undefined);
  });

  it("has ComfyUI mark the input that cures, and leaves its own faults as they are", () => {
    const { app, send } = makePage(makeNode());
    const error = (type, input_name) => ({ type, extra_info: { input_name } });
    const errors = [error("custom_validation_failed", "folder"), error("value_not_in_list", "folder"), { type: "other" }];
    send(EVENT, { node_id: "7", ...ERROR });
    app.lastNodeErrors = { 7: { errors } };
    vi.advanceTimersByTime(1000);
    expect(errors.map((each) => each.extra_info?.input_name)).toEqual(["unreadable", "folder", undefined]);
    send(EVENT, { node_id: "7", ...ERROR, input: "" });
    vi.advanceTimersByTime(1000);
    expect(errors[0].extra_info.input_name).toBe("unreadable");
  });

  it("goes when the graph is queued again, and there is one", () => {
    const node = makeNode();
    const { send } = makePage(node);
    send(EVENT, { node_id: "7", ...ERROR });
    send(EVENT, { node_id: "7", ...ERROR, found: "another" });
    expect(node.widgets).toHaveLength(2);
    send("promptQueueing", {});
    expect(node.widgets).toHaveLength(1);
  });

  it("is not made where the panel shows the error, or there is no such node", () => {
    const node = makeNode();
    const { send, toasts } = makePage(node);
    send(EVENT, { node_id: "7", in_panel: true, ...ERROR });
    expect([node.widgets.length, toasts.length]).toEqual([1, 1]);
    send(EVENT, { node_id: "8", ...ERROR });
    send(EVENT, null);
    expect([node.widgets.length, toasts.length]).toEqual([1, 1]);
  });

  it("is the panel's where the node has one", () => {
    const node = makeNode();
    const told = [];
    panels.set(node, (error) => told.push(error));
    const { send } = makePage(node);
    send(EVENT, { node_id: "7", ...ERROR });
    send("promptQueueing", {});
    expect(told).toEqual([null, ERROR, null].slice(1));
    expect(node.widgets).toHaveLength(1);
  });
});

describe("a box and other nodes of its id", () => {
  /** As undo or a tab does it: another object under the id, in the same graph. */
  function renewed(app, old, values = {}) {
    const node = Object.assign(makeNode(), values);
    app.graph.nodes = [node];
    node.graph = old.graph = { getNodeById: () => node };
    return node;
  }

  it("goes over to the node that undo has made", () => {
    const node = makeNode();
    const { app, send } = makePage(node);
    send(EVENT, { node_id: "7", ...ERROR });
    const next = renewed(app, node);
    vi.advanceTimersByTime(2000);
    expect(next.widgets.map((each) => each.name)).toEqual(["unreadable", "error"]);
  });

  it("leaves another workflow's node as it is, and is there again with its own", () => {
    const node = makeNode();
    const { app, boxes, send } = makePage(node);
    send(EVENT, { node_id: "7", workflow: "w", class_type: "Folder", ...ERROR });
    const other = renewed(app, node);
    app.graph.id = "v";
    const sized = vi.spyOn(node, "setSize");
    vi.advanceTimersByTime(2000);
    expect([other.widgets.length, boxes.boxes.size]).toEqual([1, 1]);
    const own = renewed(app, other);
    app.graph.id = "w";
    vi.advanceTimersByTime(2000);
    expect(own.widgets).toHaveLength(2);
    send("promptQueueing", {});
    expect([own.widgets.length, sized.mock.calls]).toEqual([1, []]);
  });

  it.each([["workflow", { workflow: "v" }], ["class", { class_type: "Other" }]])("is not made for an error of another %s, which a toast tells", (_, values) => {
    const node = makeNode();
    const { send, toasts } = makePage(node);
    send(EVENT, { node_id: "7", ...values, ...ERROR });
    expect([node.widgets.length, toasts.length]).toEqual([1, 1]);
  });
});

it("finds a node inside of subgraphs by its path", () => {
  const inner = makeNode(3);
  const root = { nodes: [{ id: 12, subgraph: { nodes: [inner] } }] };
  expect(nodeOf("12:3", root)).toBe(inner);
  expect(nodeOf("12:4", root)).toBe(undefined);
  expect(nodeOf("9:3", root)).toBe(undefined);
});
