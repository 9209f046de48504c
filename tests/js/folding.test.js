import { beforeEach, describe, expect, test } from "vitest";
import { addFolding, defaultOf, unfold } from "../../js/folding/advanced_inputs.js";

const ROW = 24;
const SPECS = {
  required: {
    rank: ["INT", { default: 16 }],
    kind: ["COMFY_DYNAMICCOMBO_V3", { options: [{ key: "lora", inputs: { required: { init: ["COMBO", { default: "default", advanced: true }] } } }] }],
    dropout: ["FLOAT", { default: 0, advanced: true }],
  },
  optional: { seed: ["INT", { default: 3, advanced: true }] },
};

/** A widget of the frontend's shape. */
const widget = (name, value, advanced) => ({ name, value, options: { advanced } });

/** A node whose height is that of its visible widgets, as litegraph computes it. */
function makeNode() {
  const control = { name: "control_after_generate", value: "fixed", options: {} };
  const panel = { name: "training", serialize: false, options: {} };
  const node = {
    size: [300, 9 * ROW],
    properties: {},
    inputs: [{ name: "rank" }, { name: "dropout" }, { name: "seed" }],
    widgets: [
      widget("kind", "lora"),
      widget("kind.init", "default", true),
      widget("rank", 16),
      widget("dropout", 0, true),
      { ...widget("seed", 3, true), linkedWidgets: [control] },
      control,
      panel,
    ],
    computeSize: () => [300, ROW * node.widgets.filter((each) => !each.hidden).length],
    setSize(size) {
      node.size = size;
    },
    setDirtyCanvas() {},
    addWidget(type, name, value, pressed, options) {
      const added = { type, name, value, pressed, options };
      node.widgets.push(added);
      return added;
    },
  };
  return node;
}

const shown = (node) => node.widgets.filter((each) => !each.hidden).map((each) => each.name);
const named = (node, name) => node.widgets.find((each) => each.name === name);
const button = (node) => named(node, "show_advanced");
const FOLDED = ["kind", "rank", "show_advanced", "training"];

/** @type {ReturnType<typeof makeNode>} */
let node;
const host = { all: false, itself: false, showsAll: () => host.all, measuresItself: () => host.itself };
beforeEach(() => {
  Object.assign(host, { all: false, itself: false });
  node = makeNode();
  addFolding(node, SPECS, host);
});

describe("a new node", () => {
  test("is folded, and as high as what it shows", () => {
    expect(shown(node)).toEqual(FOLDED);
    expect(node.size[1]).toBe(4 * ROW);
    expect(button(node).label).toBe("Show 3 more settings");
  });

  test("has the button where no value's place changes", () => {
    const places = node.widgets.filter((each) => each.serialize !== false).map((each) => each.name);
    expect(places).toEqual(["kind", "kind.init", "rank", "dropout", "seed", "control_after_generate"]);
    expect(node.widgets.at(-1).name).toBe("training");
    expect(button(node).options).toMatchObject({ serialize: false, canvasOnly: true });
  });

  test("without advanced inputs is left alone", () => {
    const plain = makeNode();
    addFolding(plain, { required: { rank: ["INT", { default: 1 }] } }, host);
    expect(button(plain)).toBeUndefined();
  });

  test("shows all where ComfyUI is set to", () => {
    host.all = true;
    const other = makeNode();
    addFolding(other, SPECS, host);
    expect(shown(other)).toEqual(makeNode().widgets.map((each) => each.name));
  });
});

describe("the button", () => {
  test("unfolds and folds, and keeps the room that somebody gave the node", () => {
    node.setSize([300, 4 * ROW + 50]);
    button(node).pressed();
    expect(shown(node)).toHaveLength(8);
    expect(node.size[1]).toBe(8 * ROW + 50);
    expect(button(node).label).toBe("Show fewer settings");
    button(node).pressed();
    expect(shown(node)).toEqual(FOLDED);
    expect(node.size[1]).toBe(4 * ROW + 50);
  });

  test("does not fold away what is changed or linked", () => {
    unfold(node);
    named(node, "dropout").value = 0.1;
    node.inputs[2].link = 7;
    node.showAdvanced = false;
    expect(shown(node)).toEqual(["kind", "rank", "dropout", "seed", "control_after_generate", "show_advanced", "training"]);
    expect(button(node).label).toBe("Show 1 more setting");
    // Nodes 2.0 takes these for ordinary ones.
    expect(named(node, "dropout").options.advanced).toBe(false);
    expect(named(node, "kind.init").options.advanced).toBe(true);
  });

  test("keeps another rule for the next seed in sight", () => {
    named(node, "control_after_generate").value = "randomize";
    node.showAdvanced = false;
    expect(shown(node)).toContain("seed");
  });

  test("leaves heights to a renderer that finds them itself", () => {
    host.itself = true;
    const before = node.size;
    unfold(node);
    expect(shown(node)).toHaveLength(8);
    expect(node.size).toBe(before);
  });
});

describe("while it is folded", () => {
  test("a value that is set from elsewhere comes to light, and stays when it is set back", () => {
    named(node, "dropout").value = 0.2;
    node.onDrawForeground();
    expect(shown(node)).toContain("dropout");
    expect(node.size[1]).toBe(5 * ROW);
    named(node, "dropout").value = 0;
    node.onDrawForeground();
    expect(shown(node)).toContain("dropout");
  });

  test("a choice's own advanced widgets are folded as well", () => {
    node.widgets.splice(1, 1, widget("kind.init", "default", true));
    node.onDrawForeground();
    expect(shown(node)).toEqual(FOLDED);
  });
});

describe("a saved node", () => {
  const saved = (node) => ({ size: [...node.size], properties: { ...node.properties } });

  test("keeps its height", () => {
    node.setSize([300, 9 * ROW]);
    const info = saved(node);
    node.onConfigure(info);
    expect(node.size[1]).toBe(9 * ROW);
  });

  test("of the time before folding loses the height of what is folded", () => {
    node.setSize([300, 8 * ROW + 30]);
    node.onConfigure({ size: [300, 8 * ROW + 30], properties: {} });
    expect(node.size[1]).toBe(4 * ROW + 30);
  });

  test("shows the settings that its values change", () => {
    named(node, "kind.init").value = "pissa";
    node.onConfigure({ size: [300, 4 * ROW], properties: {} });
    expect(shown(node)).toContain("kind.init");
    expect(node.size[1]).toBe(5 * ROW);
  });
});

test("a default is found, also below a choice", () => {
  expect(defaultOf(SPECS, "seed")).toBe(3);
  expect(defaultOf(SPECS, "kind.init")).toBe("default");
  expect(defaultOf(SPECS, "kind.none")).toBeUndefined();
});
