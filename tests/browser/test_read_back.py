"""The workflow that made an adapter, read back in ComfyUI's real page."""

import uuid

import pytest
from comfyui.graphs import graph, run_folder

_CLEAR = (
    "await window.app.loadGraphData({ nodes: [], links: [], version: 0.4 }, true, true, 'other')"
)

# What a person would compare: nodes, their values, and which of their inputs are linked.
_GRAPH = """
return window.app.graph.serialize().nodes
  .map((n) => [n.id, n.type, n.widgets_values ?? [], (n.inputs ?? []).filter((i) => i.link).length])
  .sort((a, b) => a[0] - b[0]);
"""

_TABS = "return window.app.extensionManager.workflow.openWorkflows.map((each) => each.filename)"

_PANEL_DONE = "return document.querySelector('.adapter-trainer-word')?.textContent === 'Done'"


def trained(page, level):
    """A run of two steps from the page, and what its graph was; the page is empty then."""
    name = f"back_{level}_{uuid.uuid4().hex[:6]}"
    page.load_api(graph(name, settings={"metadata": level}, train={"steps": 2}))
    page.run()
    page.wait_for("Done")
    made = page.browser.evaluate(_GRAPH)
    assert len(made) == 6
    page.browser.evaluate(_CLEAR)
    assert page.browser.evaluate(_GRAPH) == []
    folder = run_folder(page.server, name)
    return folder / f"{name}.safetensors", f"{name}/{folder.name}", made


@pytest.mark.exhaustive
def test_a_dropped_adapter_file_opens_the_workflow_that_made_it(page):
    file, _, made = trained(page, "full")
    page.browser.drop(file, 600, 400)
    page.browser.wait("return window.app.graph.nodes.length > 0")
    page.browser.wait(_PANEL_DONE)
    assert page.browser.evaluate(_GRAPH) == made
    assert page.browser.evaluate(_TABS)[-1] == file.stem
    assert page.problems() == []
