"""Nodes and the runs tab in another language of ComfyUI."""

import json
from pathlib import Path

import pytest
from comfyui.graphs import graph

from scripts.build_locales import memory

pytestmark = pytest.mark.exhaustive

ROOT = Path(__file__).resolve().parents[2]
OPEN = ".adapter-trainer-runs-tab-button"
TITLE = """
const node = window.app.graph.nodes.find((each) => each.comfyClass === "AdapterTrainerTrain");
return node?.title;
"""
PLACEHOLDER = "return document.querySelector('.adapter-trainer-runs-search')?.placeholder"
SHOWN = "return document.querySelector(argument[0])?.textContent.includes(argument[1])"


@pytest.fixture
def chinese(page):
    """The page with ComfyUI in Chinese."""
    page.server.post("/settings", {"Comfy.Locale": "zh", "Comfy.Sidebar.Size": "normal"})
    page.browser.open()
    yield page
    page.server.post("/settings", {"Comfy.Locale": "en", "Comfy.Sidebar.Size": "small"})


def test_nodes_and_tab_are_shown_in_chinese(chinese):
    page = chinese
    nodes = json.loads((ROOT / "locales" / "zh" / "nodeDefs.json").read_text(encoding="utf-8"))
    name, known = nodes["AdapterTrainerTrain"]["display_name"], memory("zh")
    page.load_api(graph("chinese"))
    assert page.browser.evaluate(TITLE) == name
    if page.renderer == "nodes2":
        page.browser.wait(SHOWN, ["#vue-app", name])
    page.browser.wait(SHOWN, [OPEN, known["Runs"]])
    page.browser.click(OPEN)
    page.browser.wait(PLACEHOLDER)
    assert page.browser.evaluate(PLACEHOLDER) == known["Search runs"]
    # A constant of a module, which ComfyUI imports before the tab is opened.
    page.browser.wait(SHOWN, [".adapter-trainer-runs-order", known["Newest first"]])
    page.browser.click(OPEN)
    assert page.problems() == []
