"""What is said of a run while it trains, its buttons, and that nothing is said twice."""

import json

import pytest
from browser.page import PANEL
from browser.test_panel import training_graph, unique
from comfyui.graphs import checkpoints, forget_panel, hold, release, run_folder, wait_until_held

ADVICE = f"{PANEL} .adapter-trainer-advice"
_TEXT = "return document.querySelector(argument)?.textContent ?? ''"
_SET_RATE = """
const node = window.app.graph.nodes.find((n) => n.type === "AdapterTrainerTrain");
node.widgets.find((w) => w.name === "learning_rate").value = argument;
"""
HELD = 230
"""A step behind the warm-up, by which the adapter would have moved."""

_RATE = """
const node = window.app.graph.nodes.find((n) => n.type === "AdapterTrainerTrain");
return node.widgets.find((w) => w.name === "learning_rate").value;
"""


def load_still(page, name: str, steps: int) -> None:
    """Load a graph whose adapter hardly moves."""
    page.load_api(training_graph(name, steps=steps, preview_every=0))
    # A page rounds what is loaded as a prompt.
    page.browser.evaluate(_SET_RATE, 1e-6)


@pytest.mark.exhaustive
def test_a_run_that_hardly_moves_is_told_of_while_it_trains_and_goes_on_with_the_rate(page):
    name = unique("still")
    # Encoding is counted as well, and would be held instead of the training.
    page.server.run(training_graph(unique("encoded"), steps=1, preview_every=0))
    load_still(page, name, steps=500)
    hold(page.server, at=HELD)
    page.run()
    wait_until_held(page.server)
    page.wait_for_count(f"{ADVICE} button", 1)
    assert "hardly moves" in page.browser.evaluate(_TEXT, ADVICE)
    page.browser.focus(f"{ADVICE} button")
    page.browser.press("Enter")
    record = json.loads((run_folder(page.server, name) / "run.json").read_text())
    (rate,) = [each["value"] for each in record["advice"]]
    page.browser.wait(
        "return document.querySelector(argument)?.textContent.includes('Cancel, then Run')",
        f"{ADVICE}-answer",
    )
    assert page.browser.evaluate(_RATE) == rate
    page.reload()
    page.show_train_node()
    page.wait_for_count(f"{ADVICE} button", 1)
    page.server.post("/interrupt", {})
    release(page.server)
    page.wait_for("Cancelled")
    record = json.loads((run_folder(page.server, name) / "run.json").read_text())
    assert [each["name"] for each in record["advice"]] == ["hardly_moves"]
    # Resumed with the old rate in another graph: it still hardly moves, and is not told again.
    load_still(page, name, steps=record["step"] + 120)
    page.run()
    page.wait_for("Done")
    page.wait_for_count(f"{ADVICE} button", 1)
    again = json.loads((run_folder(page.server, name) / "run.json").read_text())
    assert again["step"] == record["step"] + 120
    assert again["advice"] == record["advice"]
    assert page.problems() == []


@pytest.mark.exhaustive
def test_the_checkpoint_that_is_advised_is_copied_for_load_lora(page):
    name = unique("best")
    page.load_api(training_graph(name, steps=10, preview_every=0))
    page.run()
    page.wait_for("Done")
    folder = run_folder(page.server, name)
    (step,) = checkpoints(folder)
    record = json.loads((folder / "run.json").read_text())
    told = {"name": "held_out_rises", "message": "It rises.", "step": step, "setting": "checkpoint"}
    gone = {**told, "name": "memorized", "value": 4}
    record["advice"] = [{**told, "value": step}, gone]
    (folder / "run.json").write_text(json.dumps(record))
    forget_panel(page.server)
    page.reload()
    page.show_train_node()
    page.wait_for_count(f"{ADVICE} button", 2)
    answers = "return [...document.querySelectorAll(argument)].map((e) => e.textContent)"
    for fault in ("held_out_rises", "memorized"):
        page.browser.click(f"{ADVICE} [data-advice={fault}]")
    page.browser.wait(f"{answers}.every(Boolean)", f"{ADVICE}-answer")
    used, refused = page.browser.evaluate(answers, f"{ADVICE}-answer")
    assert used.startswith(f"{name}_step_{step:06d}.safetensors is in the loras folder")
    assert refused.startswith("the checkpoint of step 4 gave way")
    assert page.problems() == [] or all("409" in each for each in page.problems())
