"""The runs tab in ComfyUI's sidebar: all runs, one of them, and two beside each other."""

import json
import uuid

import pytest
from comfyui.graphs import graph, run_folder

pytestmark = pytest.mark.exhaustive

OPEN = ".adapter-trainer-runs-tab-button"
ROW = ".adapter-trainer-runs-row"
NAMES = "return [...document.querySelectorAll(argument)].map((each) => each.textContent)"
LINE = ".adapter-trainer-runs-line"
DRAWN = "return document.querySelector(argument).getAttribute('d')"
CHANGED = "return document.querySelector(argument[0])?.getAttribute('d') !== argument[1]"
HAS_BUTTON = """
const found = [...document.querySelectorAll(".adapter-trainer-runs-action")];
return found.some((each) => each.textContent === argument);
"""
REPORT = "return document.querySelector('a.adapter-trainer-runs-action').getAttribute('href')"
PRESS = """
const found = [...document.querySelectorAll(".adapter-trainer-runs-action")];
found.find((each) => each.textContent === argument).click();
"""


def unique(name):
    return f"{name}_{uuid.uuid4().hex[:6]}"


def trained(page, name, **changes):
    page.server.run(graph(name, previews=True, settings={"preview_every": 4}, **changes))
    return f"{name}/{run_folder(page.server, name).name}"


def names(page):
    return page.browser.evaluate(NAMES, ".adapter-trainer-runs-name")


def search(page, text, count):
    page.browser.fill(".adapter-trainer-runs-search", text)
    page.browser.wait(
        "return document.querySelectorAll(argument[0]).length === argument[1]", [ROW, count]
    )


def test_runs_are_found_compared_noted_and_used(page):
    mark = unique("tab")
    first = trained(page, f"{mark}_a")
    second = trained(page, f"{mark}_b", train={"learning_rate": 2e-3})
    page.browser.evaluate("await window.app.loadGraphData({ nodes: [], links: [], version: 0.4 })")
    page.browser.click(OPEN)
    page.wait_for_count(ROW, 2)
    search(page, f"{mark} done", 2)
    assert names(page) == [second, first]
    search(page, f"{mark}_a", 1)
    page.browser.click(ROW)
    page.browser.wait(
        "return document.querySelector(argument)?.textContent.length > 0",
        ".adapter-trainer-runs-title",
    )
    assert page.text("runs-title") == first
    page.wait_for_count(".adapter-trainer-runs-line", 1)
    page.wait_for_count(".adapter-trainer-runs-thumbnail", 1)
    assert page.text("runs-step") == "step 8"
    page.browser.fill(".adapter-trainer-runs-note", "the red one")
    page.browser.press("Tab")
    kept = run_folder(page.server, f"{mark}_a") / "notes.json"
    page.server.wait(kept.is_file, 30)
    assert json.loads(kept.read_text(encoding="utf-8"))["note"] == "the red one"

    search(page, mark, 2)
    page.browser.click(f"[data-run-key='{second} compare']")
    page.wait_for_count(".adapter-trainer-runs-line", 2)
    page.wait_for_count(".adapter-trainer-runs-images", 2)
    rows = page.browser.evaluate(NAMES, ".adapter-trainer-runs-settings th")
    assert rows == ["output.name", "training.optimizer.learning_rate"]
    search(page, f"{mark} red one", 1)

    search(page, f"{mark}_b", 1)
    page.browser.click(ROW)
    page.browser.wait("return document.querySelectorAll('.adapter-trainer-runs-one').length === 1")
    page.server.fetch(page.browser.evaluate(REPORT).removeprefix("/api"))
    page.browser.evaluate(PRESS, "Use in Load LoRA")
    page.browser.wait("return window.app.graph.nodes.some((n) => n.type === 'LoraLoaderModelOnly')")
    wanted = f"{mark}_b_v0.safetensors"
    chosen = "return window.app.graph.nodes[0].widgets.find((w) => w.name === 'lora_name')"
    assert page.browser.evaluate(f"{chosen}.value") == wanted
    assert page.browser.evaluate(f"{chosen}.options.values").count(wanted) == 1
    page.browser.evaluate(PRESS, "Load workflow")
    page.browser.wait("return window.app.graph.nodes.some((n) => n.type === 'AdapterTrainerTrain')")
    page.browser.click(OPEN)
    page.browser.wait("return !document.querySelector(argument)", ROW)
    assert page.problems() == []


def test_a_run_that_trains_is_followed_and_stopped(page):
    name = unique("live")
    page.load_api(graph(name, train={"steps": 5000}))
    page.run()
    page.wait_for("Training")
    page.browser.click(OPEN)
    search(page, f"{name} running", 1)
    page.browser.click(ROW)
    page.wait_for_count(".adapter-trainer-runs-line", 1)
    before = page.browser.evaluate(DRAWN, LINE)
    page.browser.wait(CHANGED, [LINE, before])
    page.browser.evaluate(PRESS, "Stop and keep")
    search(page, f"{name} stopped", 1)
    page.browser.wait(HAS_BUTTON, "Copy path")
    page.browser.click(OPEN)
    assert page.problems() == []


def test_five_hundred_runs_are_listed(page):
    """Of 500 runs of 10,000 steps 200 are drawn, and a search finds the others."""
    mark = unique("many")
    line = json.dumps({"step": 1, "loss": 0.5, "learning_rate": 1e-4, "step_seconds": 1.0})
    root = run_folder(page.server, trained(page, mark).split("/")[0]).parents[1]
    for number in range(500):
        folder = root / f"{mark}_{number:03d}" / "v0"
        folder.mkdir(parents=True)
        record = {"status": "done", "step": 10_000, "steps": 10_000}
        (folder / "run.json").write_text(json.dumps(record), encoding="utf-8")
        (folder / "metrics.jsonl").write_text(f"{line}\n" * 10_000, encoding="utf-8")
    page.browser.click(OPEN)
    search(page, mark, 200)
    assert page.text("runs-count").startswith("501 of ")
    search(page, f"{mark}_499", 1)
    page.browser.click(OPEN)
    assert page.problems() == []
