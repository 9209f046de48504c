"""The training panel in ComfyUI's real page, in both renderers."""

import json
import re
import time
import uuid

import pytest
from browser.page import PANEL
from comfyui.graphs import (
    TRAIN,
    checkpoints,
    forget_panel,
    graph,
    hold,
    release,
    run_folder,
    wait_until_held,
)

THUMBNAIL = f"{PANEL} .adapter-trainer-thumbnail"
TWO_PROMPTS = "a red diamond\na blue circle"
FAST = {"checkpoint_every": 0, "preview_every": 10}

_PROTRUDING = """
const whole = document.querySelector(".adapter-trainer-panel");
const panel = whole.getBoundingClientRect();
// A panel that is too low scrolls; its row of buttons stays in sight.
const scrolls = whole.scrollHeight > whole.clientHeight + 1;
return [...document.querySelectorAll(".adapter-trainer-panel *")]
  .filter((e) => !e.closest(".adapter-trainer-scroller, svg, [hidden], details > :is(table, ul)"))
  .filter((e) => {
    const box = e.getBoundingClientRect();
    if (!box.width || !box.height) return false;
    if (box.left < panel.left - 1 || box.right > panel.right + 1) return true;
    if (scrolls && !e.closest(".adapter-trainer-actions")) return false;
    return box.top < panel.top - 1 || box.bottom > panel.bottom + 1;
  })
  .map((e) => e.className);
"""

_BUTTON_ROWS = """
const buttons = [...document.querySelectorAll(".adapter-trainer-actions button")];
const tops = buttons.map((b) => b.getBoundingClientRect()).filter((box) => box.width);
return new Set(tops.map((box) => Math.round(box.top))).size;
"""

_LINES_OF_COMFYUI = """
const node = window.app.graph.nodes.find((n) => n.type === "AdapterTrainerTrain");
return node.widgets.map((w) => w.name).filter((name) => name.startsWith("$$"));
"""

_OUTSIDE_NODE = """
const app = window.app;
const node = app.graph.nodes.find((n) => n.type === "AdapterTrainerTrain");
const canvas = app.canvas.canvas.getBoundingClientRect();
const { scale, offset } = app.canvas.ds;
const left = canvas.left + (node.pos[0] + offset[0]) * scale;
const top = canvas.top + (node.pos[1] + offset[1]) * scale;
const box = document.querySelector(".adapter-trainer-panel").getBoundingClientRect();
const right = left + node.size[0] * scale, bottom = top + node.size[1] * scale;
return [left - box.left, box.right - right, top - box.top, box.bottom - bottom];
"""


_STEP = "parseInt(document.querySelector('.adapter-trainer-panel dd').textContent)"
_STEPS = "parseInt(document.querySelector('.adapter-trainer-panel dd').textContent.split('/')[1])"


def unique(name: str) -> str:
    return f"{name}_{uuid.uuid4().hex[:6]}"


def training_graph(name: str, steps: int = 30, **settings):
    return graph(
        name,
        previews=True,
        prompts={"prompts": TWO_PROMPTS},
        settings={**FAST, **settings},
        train={"steps": steps},
    )


def renumbered(nodes, new: str):
    """The graph with another id for its train node; the server keeps a state for each id."""

    def linked(value):
        return [new, value[1]] if isinstance(value, list) and value[0] == TRAIN else value

    return {
        new if node == TRAIN else node: content
        | {"inputs": {name: linked(value) for name, value in content["inputs"].items()}}
        for node, content in nodes.items()
    }


@pytest.fixture(scope="module")
def finished(opened):
    """A graph whose run is done, for tests that only look at it; each loads it again."""
    opened.load_api(renumbered(training_graph(unique("finished")), "70"))
    opened.run()
    opened.wait_for("Done")
    opened.wait_for_count(THUMBNAIL, 6)
    return opened.browser.evaluate("return window.app.graph.serialize()")


def show(page, workflow) -> None:
    page.load(workflow)
    page.wait_for("Done")
    page.wait_for_count(THUMBNAIL, 6)


def metrics(folder) -> list[dict]:
    lines = (folder / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
    return [json.loads(line) for line in lines]


def curve_places(page) -> list[float]:
    """Where the curve's points are from left to right; their height goes with the node's."""
    return [float(x) for x in re.findall(r"[ML]([\d.]+),", page.path("smoothed"))]


def assert_well_laid_out(page) -> None:
    assert page.browser.evaluate(_PROTRUDING) == []
    assert all(outside <= 1 for outside in page.browser.evaluate(_OUTSIDE_NODE))


def test_training_draws_curve_and_images_and_survives_a_reload(page):
    # Encoding is counted as well, and would be held instead of the training.
    page.server.run(training_graph(unique("encoded"), steps=1, preview_every=0))
    page.load_api(training_graph(unique("curve")))
    hold(page.server, at=40)
    page.run()
    wait_until_held(page.server)
    page.wait_for("Training")
    page.wait_for_count(f"{PANEL} [data-request]:enabled", 3)
    page.wait_for_count(THUMBNAIL, 2)
    time.sleep(0.5)
    assert_well_laid_out(page)

    page.reload()
    page.show_train_node()
    page.wait_for("Training")
    page.wait_for_count(THUMBNAIL, 2)

    release(page.server)
    page.wait_for("Done")
    page.wait_for_count(THUMBNAIL, 6)
    assert page.stats()[0] == "30 / 30"
    places, readout = curve_places(page), page.text("readout")
    assert len(places) == 30
    # Images further down load when they are scrolled to.
    page.browser.wait(
        "return [...document.querySelectorAll(argument)].slice(0, 2).every((i) => i.naturalWidth)",
        f"{THUMBNAIL} img",
    )
    assert_well_laid_out(page)
    assert page.browser.evaluate(_BUTTON_ROWS) == 1
    assert page.text("version").endswith("/v0")
    assert page.text("prompt") == "a red diamond"

    page.reload()
    page.show_train_node()
    page.wait_for("Done")
    page.wait_for_count(THUMBNAIL, 6)
    assert (curve_places(page), page.text("readout")) == (places, readout)
    assert page.problems() == []


def test_the_buttons_reach_the_training(page):
    name = unique("buttons")
    page.load_api(training_graph(name, steps=5000, preview_every=0))
    page.run()
    page.wait_for("Training")
    page.wait_for_count(f"{PANEL} path.adapter-trainer-smoothed[d^=M]", 1)
    # For a moment the panel may still have the numbers of the run before.
    page.browser.wait(f"return {_STEPS} === 5000 && {_STEP} > argument", 20, seconds=60)
    assert page.count(THUMBNAIL) == 0

    page.browser.click(f"{PANEL} [data-request=preview]")
    page.wait_for_count(THUMBNAIL, 2)
    page.browser.click(f"{PANEL} [data-request=save]")
    page.browser.wait("return document.querySelector('.adapter-trainer-feedback').textContent")
    page.server.wait(lambda: bool(checkpoints(run_folder(page.server, name))), 30)

    page.browser.click(f"{PANEL} [data-request=stop]")
    page.wait_for("Stopped, kept")
    assert page.count(f"{PANEL} [data-request]:disabled") == 3
    assert page.text("feedback") == ""
    assert (run_folder(page.server, name) / f"{name}.safetensors").is_file()
    assert page.browser.evaluate(_BUTTON_ROWS) == 1

    # A server that was restarted reads the whole course from the disk.
    assert len(places := curve_places(page)) > 2
    forget_panel(page.server)
    page.reload()
    page.show_train_node()
    page.wait_for("Stopped, kept")
    page.wait_for_count(THUMBNAIL, 2)
    stopped = int(page.stats()[0].split(" / ")[0])
    assert curve_places(page) == places

    page.browser.click(f"{PANEL} [data-go-on=continue]")
    page.browser.wait(
        f"return {_STEP} > argument"
        " && document.querySelector('.adapter-trainer-word').textContent === 'Training'",
        stopped,
        seconds=60,
    )
    assert page.text("version") == f"{name}/v0"
    assert page.text("readout").startswith("step")
    assert page.count(THUMBNAIL) == 2
    page.server.post("/interrupt", {})
    page.wait_for("Cancelled")
    assert re.fullmatch(r"Stopped at step \d+\. Run goes on from there\.", page.text("message"))
    assert page.count(f"{PANEL} [data-go-on=continue]:enabled") == 1
    steps = [entry["step"] for entry in metrics(run_folder(page.server, name))]
    assert steps == list(range(1, len(steps) + 1))
    # What ComfyUI itself shows of the node would say it again.
    assert page.browser.evaluate(_LINES_OF_COMFYUI) == []
    assert page.problems() == []


_SET_RANK = """
const { canvas, graph } = window.app;
const node = graph.nodes.find((n) => n.type === "AdapterTrainerAdapter");
canvas.emitBeforeChange();
node.widgets.find((w) => w.name.endsWith("rank")).value = argument;
canvas.emitAfterChange();
"""


@pytest.mark.exhaustive
def test_other_settings_show_that_they_start_a_new_run_and_their_own_show_theirs(page, finished):
    """Also where the node says that it showed this run last, as a template never does."""
    show(page, finished)
    page.browser.evaluate(_SET_RANK, 9)
    page.wait_for("Not started")
    assert page.text("empty").startswith("These settings start a new run: rank was 4 and is 9")
    assert page.browser.evaluate("return !document.querySelector('[data-go-on]').offsetHeight")
    page.reload()
    page.wait_for("Not started")
    page.browser.evaluate(_SET_RANK, 4)
    page.wait_for("Done")
    page.wait_for_count(THUMBNAIL, 6)
    assert page.problems() == []
