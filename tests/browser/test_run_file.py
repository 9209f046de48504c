"""A run file opens as nodes in ComfyUI's real page: dropped, and from Load Run."""

import json
import time
import uuid

import pytest
from browser.test_layout import _BOXES, faults
from comfyui.conftest import write_images
from comfyui.graphs import graph
from fixtures import foreign_files as files

from trainer_core.config.read_run_file import dump_config
from trainer_core.families.run_files import load_config

LABEL = "Open run file as graph"
COUNT = "return window.app.graph.nodes.length"
GROUPS = "return window.app.graph.groups.length"
TOASTS = (
    "return [...document.querySelectorAll('.p-toast-message')].map((e) => e.innerText).join('\\n')"
)
FORGET_TOASTS = "document.querySelectorAll('.p-toast-close-button').forEach((each) => each.click())"
EMPTY = "await window.app.loadGraphData({ nodes: [], links: [], version: 0.4 }, true, true, 'none')"
MENUS = """
const { app } = window;
const node = window.LiteGraph.createNode("AdapterTrainerTrain");
const told = (items) => items.filter(Boolean).map((each) => each.content);
return [told(app.collectCanvasMenuItems(app.canvas)), told(app.collectNodeMenuItems(node))];
"""


@pytest.fixture
def emptied(page):
    page.browser.evaluate(EMPTY)
    page.browser.evaluate(FORGET_TOASTS)
    page.browser.wait("return document.querySelectorAll('.p-toast-message').length === 0")
    return page


def toast(page, words: str) -> str:
    """All toasts, once one of them has these words."""
    page.browser.wait(f"{TOASTS.replace('return', 'return (')}).includes(argument)", words)
    return page.browser.evaluate(TOASTS)


def large_run(server) -> str:
    """A run file that needs every kind of node: five folders, control images, a second layout."""
    folders = []
    for number, role in enumerate(("train", "train", "regularization", "validation")):
        place = server.data / "datasets" / f"dropped{number}"
        if not place.exists():
            write_images(place, first=100 * (number + 1))
        folders.append({"path": str(place), "role": role})
    loose = server.data / "input" / "loose"
    config = load_config(
        {
            "dataset": {"path": str(server.data / "datasets" / "four"), "folders": folders},
            "base": {"variant": "edit"},
            "preview": {
                "prompts": ["one", "two"],
                "controls": [[str(loose / "0.png")], [str(loose / "1.png")]],
            },
            "output": {"name": f"dropped_{uuid.uuid4().hex[:6]}", "layouts": ["comfyui", "kohya"]},
        }
    )
    return dump_config(config)


def test_a_dropped_run_file_opens_as_a_graph_and_one_undo_takes_it_back(emptied, tmp_path):
    page = emptied
    page.load_api({"1": {"class_type": "AdapterTrainerEmbeddedModel", "inputs": {}}})
    steps = page.steps_to_undo()
    before = page.queued()
    file = tmp_path / "my run.yaml"
    file.write_text(large_run(page.server), encoding="utf-8")
    page.browser.drop(file, 700, 500)
    page.browser.wait("return window.app.graph.nodes.length === 17")
    told = toast(page, "my run.yaml was read as a run file of Adapter Trainer")
    assert "Batch Images makes all as large as the first" in told
    page.settle()
    time.sleep(0.6)  # the view moves to the new nodes
    boxes = page.browser.evaluate(_BOXES)
    # The node that was there has no frame.
    assert faults({**boxes, "nodes": boxes["nodes"][1:]}) == []
    assert not any("covers" in fault for fault in faults(boxes))
    assert [title for title, *_ in boxes["frames"]] == [
        "1. Images and base",
        "2. Control images of previews",
        "3. Encode and choose the adapter",
        "4. Train",
        "5. Save",
    ]
    assert page.missing_nodes() == []
    queued = page.queued()
    kinds = sorted(node["class_type"] for node in queued.values())
    assert kinds.count("AdapterTrainerDatasetFolder") == 5
    joined = next(n for n in queued.values() if n["class_type"] == "AdapterTrainerDatasetCombine")
    assert list(joined["inputs"]) == [f"datasets.dataset{at}" for at in range(5)]
    batch = next(n for n in queued.values() if n["class_type"] == "BatchImagesNode")
    assert list(batch["inputs"]) == ["images.image0", "images.image1"]

    assert page.steps_to_undo() == steps + 1
    page.browser.press("Control+z")
    page.browser.wait("return window.app.graph.nodes.length === 1", seconds=15)
    assert page.browser.evaluate(GROUPS) == 0
    assert page.queued() == before
    assert page.problems() == []


@pytest.mark.exhaustive
def test_files_of_another_program_open_together(emptied, tmp_path):
    page = emptied
    dropped = [tmp_path / "data.toml", tmp_path / "train.sh"]
    for file, text in zip(dropped, (files.MUSUBI_DATASETS, files.MUSUBI_COMMAND), strict=True):
        file.write_text(text, encoding="utf-8")
    page.browser.drop(dropped, 700, 500)
    told = toast(page, "were read as a run file of musubi-tuner")
    assert "data.toml" in told
    assert "train.sh" in told
    assert "Connect CLIP and VAE" in told
    time.sleep(1.0)  # ComfyUI has had the second file, too
    assert told.count("were read as") == 1
    assert "Unable" not in page.browser.evaluate(TOASTS)
    types = page.browser.evaluate("return window.app.graph.nodes.map((n) => n.type)")
    assert types.count("AdapterTrainerTrain") == 1
    assert page.problems() == []


@pytest.mark.exhaustive
def test_what_is_no_run_file_is_left_to_comfyui(emptied, tmp_path):
    page = emptied
    other = tmp_path / "compose.yaml"
    other.write_text("services: {web: {image: x}}", encoding="utf-8")
    page.browser.drop(other, 700, 500)
    toast(page, "compose.yaml")
    assert LABEL not in page.browser.evaluate(TOASTS)
    assert page.browser.evaluate(COUNT) == 0
    workflow = tmp_path / "some workflow.json"
    workflow.write_text(json.dumps(graph("x")), encoding="utf-8")
    page.browser.drop(workflow, 700, 500)
    page.browser.wait("return window.app.graph.nodes.length === 6")
    tabs = "return window.app.extensionManager.workflow.openWorkflows.map((each) => each.filename)"
    assert page.browser.evaluate(tabs)[-1] == "some workflow"


@pytest.mark.exhaustive
def test_load_run_opens_the_settings_of_a_run_and_menus_have_the_entry(emptied):
    page = emptied
    name = f"from_disk_{uuid.uuid4().hex[:6]}"
    page.server.run(graph(name, train={"steps": 2}))
    page.open()
    node = {"class_type": "AdapterTrainerLoadRun", "inputs": {"run": f"{name}/v0", "checkpoint": 0}}
    page.load_api({"1": node})
    page.press_button(LABEL)
    page.browser.wait("return window.app.graph.nodes.length === 7")
    toast(page, f"{name}/v0/run.yaml was read as a run file of Adapter Trainer")
    time.sleep(0.6)
    boxes = page.browser.evaluate(_BOXES)
    assert not any("covers" in fault for fault in faults(boxes))
    for items in page.browser.evaluate(MENUS):
        assert LABEL in items
    assert page.problems() == []
