import { describe, expect, test, vi } from "vitest";
import { Binding, executionIds, QUIET, RUN_PROPERTY, runName } from "../../js/panel/binding.js";
import { goOn } from "../../js/panel/go_on.js";
import { Hub } from "../../js/panel/hub.js";
import { losses, progress, sampleAt, snapshot } from "./messages.js";

function makeNode(values = {}) {
  const node = { id: 7, graph: { id: "w", nodes: [], isRootGraph: true, getNodeById: () => node } };
  return Object.assign(node, { properties: {}, widgets: [{ name: "name", value: "my_adapter" }], inputs: [{ name: "base", link: 4 }], ...values });
}

/** A node's binding with a server that answers what `states` says, and what was shown last. */
function setUp(node = makeNode(), states = {}) {
  const shown = { run: null, offline: null };
  const asked = [];
  const abouts = [];
  const prompts = [];
  const requests = [];
  const queued = { now: { 7: "graph" } };
  const server = {
    state: async (id, about, prompt) => {
      asked.push(id);
      abouts.push(about);
      prompts.push(prompt);
      const answer = states[id] ?? null;
      if (answer instanceof Error) throw answer;
      return typeof answer === "function" ? answer() : answer;
    },
    request: async (id, request, more) => {
      requests.push([request, more]);
      return { taken: true, reason: `${id} ${request}` };
    },
    imageUrl: () => "",
  };
  const screen = { show: (run, offline) => Object.assign(shown, { run, offline }) };
  const binding = new Binding(node, screen, server, () => node.graph, async () => queued.now);
  return { binding, shown, states, asked, abouts, prompts, requests, queued };
}

const settled = () => new Promise((resolve) => setTimeout(resolve, 0));

describe("messages", () => {
  test("of this node's run are shown", () => {
    const { binding, shown } = setUp();
    binding.onState(snapshot());
    binding.onProgress(progress({ step: 2, points: losses(2) }));
    binding.onSample({ node_id: "7", prompt_id: "p1", name: "my_adapter", ...sampleAt(2) });
    expect(shown.run).toMatchObject({ status: "training", step: 2, samples: [sampleAt(2)] });
    expect(shown.run.series.buckets).toHaveLength(2);
  });

  test.each([["another node", { node_id: "8" }], ["another run's name", { name: "other" }], ["another workflow", { workflow: "v" }]])("for %s are not", (_, values) => {
    const { binding, shown, asked } = setUp();
    binding.onState(snapshot(values));
    binding.onProgress(progress(values));
    binding.onSample({ ...snapshot(values), ...sampleAt(1) });
    expect(shown.run).toBeNull();
    expect(asked).toEqual([]);
  });

  test("of the next prompt replace the last run", () => {
    const { binding, shown } = setUp();
    binding.onState(snapshot({ points: losses(5) }));
    binding.onState(snapshot({ prompt_id: "p2", points: [] }));
    expect(shown.run.series.buckets).toEqual([]);
    expect(shown.run.promptId).toBe("p2");
  });

  test("go on being shown when the name is edited meanwhile", () => {
    const node = makeNode();
    const { binding, shown } = setUp(node);
    binding.onState(snapshot());
    node.widgets[0].value = "renamed";
    binding.onProgress(progress({ step: 9 }));
    expect(shown.run.step).toBe(9);
    binding.onState(snapshot({ prompt_id: "p2" }));
    expect(shown.run.promptId).toBe("p1");
  });

  test("whose beginning was missed fetch the snapshot once", async () => {
    const whole = snapshot({ step: 3, points: losses(3), warnings: ["mind"] });
    const { binding, shown, asked } = setUp(makeNode(), { 7: whole });
    binding.onProgress(progress({ step: 4, points: [[4, 0.25, 1e-4]] }));
    binding.onProgress(progress({ step: 5, points: [[5, 0.2, 1e-4]] }));
    await settled();
    expect(asked).toEqual(["7"]);
    expect(shown.run.warnings).toEqual(["mind"]);
    expect(shown.run.series.buckets.map((b) => b.step)).toEqual([1, 2, 3, 4, 5]);
  });
});

describe("restoring", () => {
  test("shows the run that the node names", async () => {
    const { binding, shown } = setUp(makeNode(), { 7: snapshot({ status: "done", points: losses(4) }) });
    await binding.restore();
    expect(shown.run.status).toBe("done");
    expect(shown.run.series.buckets).toHaveLength(4);
  });

  test("shows nothing of another workflow's run under the same node id", async () => {
    const { binding, shown } = setUp(makeNode(), { 7: snapshot({ name: "other" }) });
    await binding.restore();
    expect(shown.run).toBeNull();
  });

  test.each([["no run", null], ["an empty answer", {}], ["no answer", new Error("down")]])("with %s shows nothing", async (_, answer) => {
    const { binding, shown } = setUp(makeNode(), { 7: answer });
    await binding.restore();
    expect(shown.run).toBeNull();
  });

  test("drops an answer that was overtaken by the next prompt", async () => {
    let answer;
    const { binding, shown } = setUp(makeNode(), { 7: () => new Promise((resolve) => { answer = resolve; }) });
    const restored = binding.restore();
    await settled();
    binding.onState(snapshot({ prompt_id: "p2" }));
    answer(snapshot({ prompt_id: "p1", status: "done" }));
    await restored;
    expect(shown.run).toMatchObject({ promptId: "p2", status: "training" });
  });
});

describe("the version of the run", () => {
  const done = (run) => snapshot({ status: "done", run, prompt_id: run });

  test("is kept with the node, and asked for when the server has forgotten", async () => {
    const { binding, abouts } = setUp();
    binding.onState(done("my_adapter/v1"));
    expect(binding.node.properties[RUN_PROPERTY]).toBe("my_adapter/v1");
    await binding.restore();
    expect(abouts).toEqual([{ name: "my_adapter", workflow: "w", run: "my_adapter/v1", exact: false }]);
  });

  test("is the one that the node's outputs come from, also when ComfyUI remembered them", async () => {
    const { binding, shown, states, abouts } = setUp();
    binding.onState(done("my_adapter/v1"));
    binding.onExecuted({ adapter_trainer_run: ["my_adapter/v1"] });
    binding.onExecuted(null);
    binding.onExecuted({ adapter_trainer_run: [3] });
    expect(abouts).toEqual([]);
    states[7] = done("my_adapter/v0");
    binding.onExecuted({ adapter_trainer_run: ["my_adapter/v0"] });
    await settled();
    expect(abouts).toMatchObject([{ run: "my_adapter/v0", exact: true }]);
    expect(shown.run.version).toBe("my_adapter/v0");
  });

  test("can be opened by Load Run, at nodes of that name alone", async () => {
    const { binding, shown, states, asked } = setUp();
    states[7] = done("my_adapter/v3");
    binding.open("other/v3");
    expect(asked).toEqual([]);
    binding.open("my_adapter/v3");
    await settled();
    expect(shown.run.version).toBe("my_adapter/v3");
  });
});

describe("the settings", () => {
  test("say which run is shown, or that they start a new one", async () => {
    const { binding, shown, states, prompts, queued } = setUp(makeNode(), { 7: snapshot({ status: "done", run: "my_adapter/v0" }) });
    await binding.restore();
    expect([shown.run.version, prompts]).toEqual(["my_adapter/v0", [{ 7: "graph" }]]);
    await binding.restoreChanged();
    expect(prompts).toHaveLength(1);
    queued.now = { 7: "other" };
    states[7] = { reason: "These settings start a new run: folder was a and is b." };
    await binding.restoreChanged();
    expect(shown.run).toMatchObject({ status: "idle", version: "", message: states[7].reason });
  });

  test("change nothing of what is being computed, until it is over", async () => {
    const { binding, shown, states, queued } = setUp();
    binding.onState(snapshot());
    queued.now = { 7: "other" };
    states[7] = { reason: "These settings start a new run." };
    await binding.restoreChanged();
    expect(shown.run.status).toBe("training");
    binding.onState(snapshot({ status: "done" }));
    binding.onPromptEnd("p1");
    await binding.restoreChanged();
    expect(shown.run.status).toBe("idle");
  });
});

describe("going on", () => {
  function trained(values = {}, node = {}) {
    const set = setUp(makeNode(node));
    set.binding.onState(snapshot({ status: "done", run: "my_adapter/v2", step: 60, steps: 60, ...values }));
    const pressed = [];
    const press = (more, taken = true) => goOn(set.binding, more, async (nodes) => { pressed.push([more, nodes]); return taken; });
    return { ...set, pressed, press };
  }

  test.each([["to the planned end", null, null], ["for more steps", 30, 90]])("%s names the run, changes no input and queues", async (_, more, steps) => {
    const { binding, press, pressed, requests } = trained();
    const before = structuredClone(binding.node.widgets);
    expect(await press(more)).toEqual({ taken: true, reason: "7 continue Nodes behind it get the result with the next Run." });
    expect(requests).toEqual([["continue", { run: "my_adapter/v2", steps, prompt: { 7: "graph" } }]]);
    expect([pressed, binding.node.widgets]).toEqual([[[more, ["7"]]], before]);
  });

  test.each([["ComfyUI refused the graph", false, {}], ["its node is gone", true, { getNodeById: () => null }]])("is taken back where %s", async (_, taken, graph) => {
    const { binding, press, requests } = trained();
    Object.assign(binding.node.graph, graph);
    expect(await press(null, taken)).toMatchObject({ taken: false });
    expect(requests.map(([request]) => request)).toEqual(["continue", "leave"]);
  });
});

describe("a lost connection", () => {
  test("is shown, and the state is asked for when it is back", async () => {
    const { binding, shown, states } = setUp();
    binding.onState(snapshot({ step: 1 }));
    binding.onConnection(true);
    expect(shown.offline).toBe(true);
    states[7] = snapshot({ step: 8, points: losses(8) });
    binding.onConnection(false);
    await settled();
    expect(shown).toMatchObject({ offline: false, run: { step: 8 } });
  });

  test("to a server that was restarted ends the run", async () => {
    const { binding, shown } = setUp();
    binding.onState(snapshot({ points: losses(3) }));
    binding.onConnection(false);
    await settled();
    expect(shown.run.status).toBe("lost");
    expect(shown.run.series.buckets).toHaveLength(3);
  });

  test("leaves a finished run as it is", async () => {
    const { binding, shown } = setUp();
    binding.onState(snapshot({ status: "done" }));
    binding.onConnection(false);
    await settled();
    expect(shown.run.status).toBe("done");
  });
});

test("the end of the prompt asks once more if the run still looks active", async () => {
  const { binding, shown, states, asked } = setUp();
  binding.onState(snapshot());
  states[7] = snapshot({ status: "failed", message: "no room" });
  binding.onPromptEnd("another");
  expect(asked).toEqual([]);
  binding.onPromptEnd("p1");
  await settled();
  expect(shown.run).toMatchObject({ status: "failed", message: "no room" });
  binding.onPromptEnd("p1");
  expect(asked).toHaveLength(1);
});

describe("a run that says nothing", () => {
  /** A binding whose run was read, and the next look at it. */
  async function quiet(run) {
    vi.useFakeTimers({ toFake: ["Date"] });
    const all = setUp(makeNode(), { 7: snapshot({ run }) });
    await all.binding.restore();
    const look = async (answer) => {
      all.states[7] = answer;
      vi.advanceTimersByTime(QUIET + 1000);
      await all.binding.catchUp();
    };
    return { ...all, look };
  }

  test("is asked for until it ends", async () => {
    const { binding, shown, abouts, look } = await quiet("my_adapter/v1");
    await binding.catchUp();
    expect(abouts).toHaveLength(1);
    for (const [status, step] of [["training", 5], ["done", 9], ["done", 9]]) {
      await look(snapshot({ run: "my_adapter/v1", status, step }));
      expect(shown.run).toMatchObject({ status, step });
    }
    expect(abouts.slice(1)).toMatchObject([{ run: "my_adapter/v1", exact: true }, { exact: true }]);
    vi.useRealTimers();
  });

  test("is asked for by its own name while it encodes, until the node trains another run", async () => {
    const { binding, shown, abouts, prompts, look } = await quiet("");
    binding.node.widgets[0].value = "renamed";
    await look({ reason: "These settings start a new run." });
    await look(snapshot({ run: "my_adapter/v1", step: 3 }));
    expect(shown.run).toMatchObject({ version: "my_adapter/v1", step: 3 });
    expect(abouts.slice(1)).toMatchObject([{ name: "my_adapter", exact: false }, { exact: false }]);
    expect(prompts.slice(1)).toEqual([null, null]);
    // The node trains another one, so this one is over.
    await look(snapshot({ prompt_id: "p2", name: "renamed", step: 7 }));
    await settled();
    expect(shown.run).toMatchObject({ status: "training", promptId: "p2" });
    vi.useRealTimers();
  });

  test("keeps what a message says while it is asked for", async () => {
    const { binding, shown, look } = await quiet("my_adapter/v1");
    await look(() => {
      vi.advanceTimersByTime(10);
      binding.onProgress(progress({ step: 9 }));
      return snapshot({ run: "my_adapter/v1", step: 4 });
    });
    expect(shown.run.step).toBe(9);
    vi.useRealTimers();
  });
});

describe("ids and names", () => {
  test("a node in a subgraph has a path for each place it is used", () => {
    const inner = { nodes: [] };
    const middle = { nodes: [{ id: 5, subgraph: inner }] };
    const root = { nodes: [{ id: 1 }, { id: 2, subgraph: middle }, { id: 9, subgraph: inner }], isRootGraph: true };
    expect(executionIds({ id: 7, graph: inner }, root)).toEqual(["2:5:7", "9:7"]);
    expect(executionIds({ id: 1, graph: root }, root)).toEqual(["1"]);
    expect(executionIds({ id: -1, graph: null }, root)).toEqual([]);
  });

  test("a request goes to the id that the run has", async () => {
    const { binding } = setUp();
    binding.onState(snapshot());
    expect((await binding.ask("save")).reason).toBe("7 save");
  });

  test("a name that comes over a link is not known", () => {
    expect(runName(makeNode({ inputs: [{ name: "name", link: 3 }] }))).toBeNull();
    expect(runName(makeNode())).toBe("my_adapter");
    expect(runName(makeNode({ widgets: [] }))).toBeNull();
  });
});

test("the hub gives a message to every node that is in a graph, and to no other", async () => {
  const api = new EventTarget();
  const hub = new Hub();
  hub.listen(api);
  const first = setUp();
  const second = setUp(makeNode({ id: 8 }));
  hub.add(first.binding);
  hub.add(second.binding);
  api.dispatchEvent(new CustomEvent("adapter_trainer.state", { detail: snapshot({ node_id: "8" }) }));
  expect(first.shown.run).toBeNull();
  expect(second.shown.run.status).toBe("training");
  hub.delete(second.binding);
  api.dispatchEvent(new CustomEvent("adapter_trainer.progress", { detail: progress({ node_id: "8", step: 5 }) }));
  expect(second.shown.run.step).toBe(0);
  // Of a run that another page has queued only this is heard.
  first.states[7] = snapshot({ step: 3 });
  api.dispatchEvent(new CustomEvent("adapter_trainer.changed", { detail: { node_id: "7", prompt_id: "p1", name: "my_adapter" } }));
  await settled();
  expect(first.shown.run.step).toBe(3);
  api.dispatchEvent(new CustomEvent("reconnecting"));
  expect(first.shown.offline).toBe(true);
});
