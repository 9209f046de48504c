"""Every shipped workflow opens in ComfyUI's real page, in one of the renderers."""

from __future__ import annotations

import json

import pytest
from browser.page import RENDERERS
from comfyui.server import ROOT
from fixtures.combinations import each_once

QUICK = ("01_first_adapter.json", "14_quick_flux_kontext.json", "61_advanced_qwen_image.json")
QUEUED = ROOT / "tests" / "workflows"
WORKFLOWS = sorted(path.name for path in (ROOT / "workflows").glob("*.json"))


def test_there_are_workflows():
    assert WORKFLOWS


IN_ONE = [
    *[pytest.param("canvas", name, id=f"canvas-{name}") for name in QUICK],
    *[
        pytest.param(renderer, name, id=f"{renderer}-{name}", marks=pytest.mark.exhaustive)
        for renderer, name in sorted(each_once(RENDERERS, WORKFLOWS))
        if (renderer, name) not in {("canvas", quick) for quick in QUICK}
    ],
]
"""Each workflow in a renderer, those of one first: what is queued is the same in both."""


@pytest.mark.parametrize(("opened", "name"), IN_ONE, indirect=["opened"])
def test_a_workflow_opens_without_missing_nodes_or_errors(page, name):
    workflow = json.loads((ROOT / "workflows" / name).read_text(encoding="utf-8"))
    page.load(workflow)
    page.browser.evaluate(
        "await window.app.extensionManager.command.execute('Comfy.Canvas.FitView')"
    )
    page.settle()
    page.shoot(f"workflow_{name.removesuffix('.json')}")
    assert page.missing_nodes() == []
    assert page.browser.evaluate("return window.app.graph.nodes.length") == len(workflow["nodes"])
    # What the page would queue is what the tests of the server run.
    queued = page.browser.evaluate("return (await window.app.graphToPrompt()).output")
    for node in queued.values():
        del node["_meta"]
    assert queued == json.loads((QUEUED / name).read_text(encoding="utf-8"))
    assert page.problems() == []


@pytest.mark.parametrize("name", WORKFLOWS[:1])
def test_a_node_that_nobody_registered_is_found(page, name):
    workflow = json.loads((ROOT / "workflows" / name).read_text(encoding="utf-8"))
    workflow["nodes"][0]["type"] = "AdapterTrainerNothing"
    page.load(workflow)
    assert page.missing_nodes() == ["AdapterTrainerNothing"]
