"""Every shipped workflow as the page opens it: whole, and nothing leaves its frame."""

import json

import pytest
from comfyui.server import ROOT
from fixtures.combinations import some
from fixtures.workflow_view import fit_scale

NAMES = sorted(path.stem for path in (ROOT / "workflows").glob("*.json"))
QUEUED = ROOT / "tests" / "workflows"
QUICK = ("01_first_adapter",)
SHOWING = ("PreviewImage", "SaveImage", "LossGraphNode")

_AS_TEMPLATE = (
    "await window.app.loadGraphData(argument, true, true, 'template', { openSource: 'template' });"
)

# What the server says of a node that has shown an image; it is loaded as any other.
_SHOW_IMAGES = """
const { api, graph } = window.app;
const images = [{ filename: "example.png", subfolder: "", type: "input" }];
for (const node of graph.nodes.filter((each) => argument.includes(each.type))) {
  const id = String(node.id);
  api.dispatchCustomEvent("executed", { node: id, display_node: id, output: { images } });
}
const text = ["Wrote a_rather_long_name_of_an_adapter.safetensors, trained 360 steps."];
for (const { id } of graph.nodes.filter((n) => /Trainer(Save|Convert)$/.test(n.type)))
  api.dispatchCustomEvent("executed", { node: `${id}`, display_node: `${id}`, output: { text } });
for (const { id } of graph.nodes.filter((n) => n.type === "AdapterTrainerCache"))
  api.dispatchCustomEvent("progress_text", {
    nodeId: String(id), text: "encoded 102/308 images and captions" });
window.app.canvas.setDirty(true, true);
"""
_IMAGES_SHOWN = """
const nodes = window.app.graph.nodes.filter((each) => argument.includes(each.type));
const loaded = (node) => {
  const element = document.querySelector(`[data-node-id="${node.id}"]`);
  const images = element ? [...element.querySelectorAll("img")] : node.imgs ?? [];
  return images.some((each) => each.naturalWidth > 0);
};
const texts = [...document.querySelectorAll(".adapter-trainer-verdict-text")];
return nodes.every(loaded) && texts.every((each) => each.clientHeight > 0);
"""

# Boxes in the graph's own units. A node of Nodes 2.0 is an element, with a strip below for errors.
_BOXES = """
const { graph, canvas } = window.app;
const page = canvas.canvas.getBoundingClientRect();
const { scale, offset } = canvas.ds;
const box = (node) => {
  let [left, top, width, height] = node.boundingRect;
  let [right, bottom] = [left + width, top + height];
  const element = document.querySelector(`[data-node-id="${node.id}"]`);
  if (element) {
    const own = element.getBoundingClientRect();
    const all = [element, ...element.querySelectorAll("*")]
      .map((each) => each.getBoundingClientRect())
      .filter((each) => each.height > 0);
    const inGraph = (value, axis) => value / scale - offset[axis];
    left = Math.min(left, inGraph(own.left - page.left, 0));
    right = Math.max(right, inGraph(own.right - page.left, 0));
    top = Math.min(top, inGraph(Math.min(...all.map((each) => each.top)) - page.top, 1));
    bottom = Math.max(bottom, inGraph(Math.max(...all.map((each) => each.bottom)) - page.top, 1));
  }
  return [node.title, left, top, right, bottom];
};
return {
  nodes: graph.nodes.map(box),
  frames: graph.groups.map(({ pos, size, title }) =>
    [title, pos[0], pos[1], pos[0] + size[0], pos[1] + size[1]]),
  cut: [...document.querySelectorAll(".adapter-trainer-dataset-line")]
    .filter((e) => e.scrollHeight > e.clientHeight + 1).map((e) => `cut off: ${e.textContent}`),
};
"""


def faults(boxes) -> list[str]:
    """Nodes that leave their frame, pairs that cover each other, and sentences that are cut."""
    nodes, frames = boxes["nodes"], boxes["frames"]
    found = [*boxes.get("cut", ())]
    for at, (title, *box) in enumerate(nodes):
        if not any(_within(box, frame) for _, *frame in frames):
            found.append(f"{title} leaves its frame: {box}")
        found += [f"{title} covers {other}" for other, *each in nodes[:at] if _overlap(box, each)]
    return found


def _within(box, frame) -> bool:
    return frame[0] <= box[0] and frame[1] <= box[1] and box[2] <= frame[2] and box[3] <= frame[3]


def _overlap(one, other) -> bool:
    return one[0] < other[2] and other[0] < one[2] and one[1] < other[3] and other[1] < one[3]


@pytest.mark.parametrize("name", some(NAMES, *QUICK))
def test_a_workflow_opens_whole_and_nothing_leaves_its_frame(page, name):
    workflow = json.loads((ROOT / "workflows" / f"{name}.json").read_text(encoding="utf-8"))
    page.browser.evaluate(_AS_TEMPLATE, workflow)
    size = page.browser.evaluate(
        "const { width, height } = window.app.canvas.canvas; return [width, height]"
    )
    scale = page.browser.evaluate("return window.app.canvas.ds.scale")
    assert scale == pytest.approx(fit_scale(workflow, *size), rel=1e-6)
    assert page.missing_nodes() == []
    assert page.browser.evaluate("return window.app.graph.nodes.length") == len(workflow["nodes"])
    # What the page would queue is what the tests of the server run.
    queued = page.queued()
    for node in queued.values():
        del node["_meta"]
    assert queued == json.loads((QUEUED / f"{name}.json").read_text(encoding="utf-8"))
    page.settle()
    assert faults(page.browser.evaluate(_BOXES)) == []

    page.browser.evaluate(_SHOW_IMAGES, SHOWING)
    page.browser.wait(_IMAGES_SHOWN, SHOWING)
    page.settle()
    assert faults(page.browser.evaluate(_BOXES)) == []
    assert page.problems() == []


def test_what_leaves_a_frame_or_covers_another_is_found():
    frames = [["frame", 0, 0, 100, 100]]
    inside = ["inside", 10, 10, 50, 50]
    assert faults({"nodes": [inside], "frames": frames}) == []
    assert len(faults({"nodes": [inside, ["low", 10, 60, 50, 101]], "frames": frames})) == 1
    assert faults({"nodes": [inside, ["on it", 40, 40, 60, 60]], "frames": frames}) == [
        "on it covers inside"
    ]


_TWO_NODES = """
const { app, LiteGraph } = window;
app.graph.clear();
for (const [at, type] of ["AdapterTrainerQuick", "AdapterTrainerCheck"].entries()) {
  const node = LiteGraph.createNode(type);
  app.graph.add(node);
  node.pos = [100 + 600 * at, 80];
}
"""
_ZOOM = """
const { canvas } = window.app;
canvas.ds.scale = argument;
canvas.ds.offset = [0, 0];
canvas.setDirty(true, true);
"""
_LETTERS = """
const { scale } = window.app.canvas.ds;
return [".adapter-trainer-word", ".adapter-trainer-dataset-count"].map((each) =>
  parseFloat(getComputedStyle(document.querySelector(each)).fontSize) * scale);
"""
_VERDICT = """
const node = window.app.graph.nodes.find((each) => each.type === "AdapterTrainerCheck");
if (argument[0]) node.onExecuted({ text: [argument[0]] });
const text = document.querySelector(".adapter-trainer-verdict-text");
const box = text?.parentElement;
return Boolean(box) && box.scrollHeight <= box.clientHeight + 1
  && text.offsetHeight > argument[1] && node.size[1] > text.offsetHeight;
"""


# As the server tells it of a run on a GPU, with all that a panel can have above the samples.
_TELL = """
const { app } = window;
const { id } = app.graph.nodes.find((n) => n.type === "AdapterTrainerQuick");
const image = { step: 0, index: 0, filename: "example.png", subfolder: "", type: "input" };
const rows = [{ base_format: "int8", blocks_to_swap: 3, device_bytes: 5e9, seconds: 1 }];
const detail = {
  node_id: String(id), prompt_id: "told", name: "", run: "told/v0", status: "training",
  message: "72 layers, 127,360 parameters on cuda:0 in bf16",
  step: 9, steps: 90, points: [[1, 0.1, 1e-3], [9, 0.1, 1e-3]], samples: [image],
  warnings: ["a warning"], notes: ["a note"],
  memory: { blocks: 9, device_free: 8e9, ram_free: 9e9, rows },
  layers: ["5 x blocks.*.to_q: 64 x 64, rank 4, 512 (lora_up 64 x 4, lora_down 4 x 64)"],
  choices: [{ setting: "rank", value: "16", why: "Because." }],
};
app.api.dispatchEvent(new CustomEvent("adapter_trainer.state", { detail }));
"""
_SAMPLE_IN_SIGHT = """
const image = document.querySelector(".adapter-trainer-thumbnail")?.getBoundingClientRect();
const actions = document.querySelector(".adapter-trainer-actions").getBoundingClientRect();
return Boolean(document.querySelector("[data-far]")) === argument < 0.65
  && image && image.height > 60 * argument && image.bottom <= actions.top + 1;
"""


def test_a_sample_is_in_sight_while_all_else_is_told(page):
    page.browser.evaluate(_TWO_NODES)
    page.browser.evaluate(_ZOOM, 1)
    page.browser.wait("return document.querySelectorAll('.adapter-trainer-panel').length === 1")
    page.settle()
    page.browser.evaluate(_TELL)
    for zoom in (1, 0.6, 0.4):
        page.browser.evaluate(_ZOOM, zoom)
        page.browser.wait(_SAMPLE_IN_SIGHT, zoom)
    assert page.problems() == []


def test_letters_stay_legible_from_far_and_a_verdict_is_whole(page):
    page.browser.evaluate(_TWO_NODES)
    page.browser.evaluate(_ZOOM, 0.4)
    page.wait_for_count("[data-far]", 2)
    assert min(page.browser.evaluate(_LETTERS)) >= 8
    page.browser.evaluate(_ZOOM, 1)
    page.browser.wait("return !document.querySelector('[data-far]')")
    for lines, height in ((12, 150), (24, 300)):
        text = "\n".join(f"layer {n} is another" for n in range(lines))
        page.browser.evaluate(_VERDICT, [text, height])
        page.browser.wait(_VERDICT, ["", height])
    assert page.problems() == []
