"""Advanced inputs are folded in ComfyUI's real page, in both renderers, and none is lost."""

import time
from typing import Any

ADAPTER = "AdapterTrainerAdapter"
FIRST = ["kind", "kind.factor", "kind.full_matrix", "rank", "alpha", "dora", "start_from"]

_ADD = """
const { graph, canvas } = window.app;
graph.clear();
const node = window.LiteGraph.createNode(argument);
node.pos = [100, 100];
graph.add(node);
canvas.ds.scale = 0.8;
canvas.ds.offset.splice(0, 2, 100, 50);
canvas.setDirty(true, true);
"""

# What a person sees, from top to bottom: by litegraph's own word, or by what is in the page.
_SEEN = """
const node = window.app.graph.nodes[0];
const element = document.querySelector(`[data-node-id="${node.id}"]`);
const settings = node.widgets.filter((w) => w.serialize !== false);
if (!element) return settings.filter((w) => node.isWidgetVisible(w)).map((w) => w.name);
const rows = [...element.querySelectorAll("[data-testid=node-widget]")];
const texts = rows.map((row) => [row.textContent, ...[...row.querySelectorAll("[aria-label]")]
  .map((e) => e.ariaLabel)]);
return settings.map((w) => w.name).filter((name) => {
  const label = name.split(".").at(-1);
  return texts.some((all) => all.some((text) => text?.startsWith(label)));
});
"""

# How far the lowest thing of the node is above its lower edge; below nothing is left over.
_ROOM = """
const node = window.app.graph.nodes[0];
const element = document.querySelector(`[data-node-id="${node.id}"]`);
if (!element) {
  const last = node.widgets.filter((w) => node.isWidgetVisible(w)).at(-1);
  return node.size[1] - last.y - (last.computedHeight ?? 20);
}
const bottom = element.getBoundingClientRect().bottom;
const parts = [...element.querySelectorAll("[data-testid=node-widget], button")];
return bottom - Math.max(...parts.map((e) => e.getBoundingClientRect().bottom));
"""

_BUTTON = """
const { graph, canvas } = window.app;
const node = graph.nodes[0];
const widget = node.widgets.find((w) => w.name === "show_advanced");
if (!node.isWidgetVisible(widget)) return null;
const { scale, offset } = canvas.ds;
return [
  (node.pos[0] + node.size[0] / 2 + offset[0]) * scale,
  (node.pos[1] + widget.y + 10 + offset[1]) * scale,
  widget.label,
];
"""

_SET = """
const node = window.app.graph.nodes[0];
for (const [name, value] of Object.entries(argument)) {
  node.widgets.find((w) => w.name === name).value = value;
}
window.app.canvas.setDirty(true, true);
"""

_SAVED = "return window.app.graph.serialize()"


def seen(page) -> list[str]:
    return page.browser.evaluate(_SEEN)


def inputs(page) -> dict[str, Any]:
    """What the page would queue of the only node."""
    (node,) = page.queued().values()
    return node["inputs"]


def press(page) -> None:
    """Press the button that shows more, or fewer: ComfyUI's own in Nodes 2.0."""
    if page.renderer == "nodes2":
        # Its upper part lies behind the node.
        page.browser.click("[data-testid=advanced-inputs-button]", (100, 31))
    else:
        x, y, _ = page.browser.evaluate(_BUTTON)
        page.browser.click("#graph-canvas", (x, y))
    time.sleep(0.4)


def assert_nothing_outside(page) -> None:
    assert -1 <= page.browser.evaluate(_ROOM) <= 60


def before_folding(workflow: dict[str, Any], height: float) -> dict[str, Any]:
    """The workflow as it was saved when every setting was visible."""
    (node,) = workflow["nodes"]
    node["properties"].pop("adapter_trainer_folding")
    node.pop("showAdvanced", None)
    node["size"][1] = height
    return workflow


def test_advanced_inputs_fold_and_what_is_changed_stays_in_sight(page):
    page.browser.evaluate(_ADD, ADAPTER)
    page.browser.wait(f"const seen = (() => {{{_SEEN}}})(); return seen.length === argument", 7)
    assert seen(page) == FIRST
    assert_nothing_outside(page)

    press(page)
    every = seen(page)
    assert len(every) > 20
    assert set(FIRST) <= set(every)
    assert_nothing_outside(page)
    page.browser.evaluate(_SET, {"dropout": 0.1, "kind.unbalanced": True})
    press(page)
    changed = [*FIRST[:3], "kind.unbalanced", *FIRST[3:6], "dropout", "start_from"]
    assert seen(page) == changed
    assert_nothing_outside(page)

    queued = inputs(page)
    assert queued["dropout"] == 0.1
    assert len(queued) == len(every)
    workflow = page.browser.evaluate(_SAVED)
    page.load(workflow)
    page.browser.wait(f"const seen = (() => {{{_SEEN}}})(); return seen.length === argument", 9)
    assert seen(page) == changed
    assert inputs(page) == queued
    again = page.browser.evaluate(_SAVED)
    assert again["nodes"][0]["widgets_values"] == workflow["nodes"][0]["widgets_values"]
    assert abs(again["nodes"][0]["size"][1] - workflow["nodes"][0]["size"][1]) <= 1

    page.load(before_folding(workflow, 740))
    page.browser.wait(f"const seen = (() => {{{_SEEN}}})(); return seen.length === argument", 9)
    assert inputs(page) == queued
    assert_nothing_outside(page)
    assert page.problems() == []
