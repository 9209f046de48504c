"""Train LoRA (Quick) in ComfyUI's real page: its panel, what was chosen, and the full graph."""

import time
import uuid

import pytest

LABEL = "Open as full graph"
CHAIN = {
    *("AdapterTrainerDatasetFolder", "AdapterTrainerBase", "AdapterTrainerPreviewPrompts"),
    *("AdapterTrainerCache", "AdapterTrainerAdapter", "AdapterTrainerSettings"),
    "AdapterTrainerTrain",
}
ANSWERS = {
    "folder": "datasets/four",
    "base": "embedded",
    "goal": "style",
    "quality": "fast",
    "name": "",
    "trigger_word": "ohwx",
    "kind": "lora",
    "prompts": "a red diamond",
    "steps": 2,
}


def quick_graph(name: str):
    """The node with something behind it; the empty name is that of the folder."""
    answers = {**ANSWERS, "name": name}
    return {
        "51": {"class_type": "AdapterTrainerQuick", "inputs": answers},
        "52": {"class_type": "ImageInvert", "inputs": {"image": ["51", 2]}},
    }


_SHOW = """
const { canvas, graph } = window.app;
const node = graph.nodes.find((n) => n.type === "AdapterTrainerQuick");
canvas.ds.scale = 0.8;
canvas.ds.offset[0] = 300 - node.pos[0];
canvas.ds.offset[1] = 90 - node.pos[1];
canvas.setDirty(true, true);
"""
# What of the opened table is in sight, and which buttons of the panel something covers.
_SEEN = """
const panel = document.querySelector(".adapter-trainer-panel");
const box = panel.getBoundingClientRect();
const inside = (r) => r.top >= box.top && r.bottom <= box.bottom + 1 && r.height > 0;
const rows = [...panel.querySelectorAll(".adapter-trainer-choices tbody tr")];
const all = [...panel.querySelectorAll(".adapter-trainer-actions button")];
const buttons = all.filter((b) => b.offsetHeight);
return {
  rows: rows.filter((row) => inside(row.getBoundingClientRect())).length,
  hidden_buttons: buttons.filter((b) => {
    const r = b.getBoundingClientRect();
    const top = document.elementFromPoint(r.left + r.width / 2, r.top + r.height / 2);
    return !inside(r) || !b.contains(top);
  }).map((b) => b.textContent),
};
"""
_TYPES = "return window.app.graph.nodes.map((n) => n.type)"
_OVERLAPS = """
const boxes = window.app.graph.nodes.map((n) => [n.type, n.pos[0], n.pos[1] - 30,
  n.pos[0] + n.size[0], n.pos[1] + n.size[1]]);
return boxes.flatMap((a, i) => boxes.slice(i + 1)
  .filter((b) => a[1] < b[3] && b[1] < a[3] && a[2] < b[4] && b[2] < a[4])
  .map((b) => `${a[0]} and ${b[0]}`));
"""


_WORDS = "[...document.querySelectorAll('.adapter-trainer-word')].map((e) => e.textContent)"
_EMPTY = "document.querySelector('.adapter-trainer-empty').textContent"
_BACK = "window.dispatchEvent(new Event('focus'))"
_PASTE = """
const { canvas, graph } = window.app;
canvas.select(graph.nodes.find((n) => n.type === "AdapterTrainerQuick"));
canvas.copyToClipboard();
canvas.pasteFromClipboard();
"""


def assert_tells_of_images(page, caption) -> None:
    """A caption that another program writes makes another run of the same graph."""
    text = caption.read_text(encoding="utf-8")
    try:
        caption.write_text("another", encoding="utf-8")
        page.browser.evaluate(_BACK)
        page.wait_for("Not started", 20)
        assert "images or captions in datasets/four have changed" in page.browser.evaluate(
            f"return {_EMPTY}"
        )
    finally:
        caption.write_text(text, encoding="utf-8")
    page.browser.evaluate(_BACK)
    page.wait_for("Done", 20)


def assert_pasted_shows_the_same(page) -> None:
    """What was chosen is of the run, not of the node's id."""
    shown = "[...document.querySelectorAll('.adapter-trainer-choices')].map((e) => e.textContent)"
    page.browser.evaluate(_PASTE)
    same = f"const [a, b] = {shown}; return a === b && ({_WORDS}).join() === 'Done,Done'"
    page.browser.wait(same, seconds=20)
    page.browser.evaluate("await window.app.extensionManager.command.execute('Comfy.Undo')")
    page.browser.wait(f"return ({_WORDS}).length === 1")


def kinds(page) -> set[str]:
    return set(page.browser.evaluate(_TYPES))


def values(prompt) -> dict[str, dict]:
    """Inputs that are not links, by the node's class."""
    return {
        node["class_type"]: {k: v for k, v in node["inputs"].items() if not isinstance(v, list)}
        for node in prompt.values()
    }


@pytest.mark.exhaustive
def test_a_few_answers_train_and_open_as_the_full_graph(page):
    name = f"quick_{uuid.uuid4().hex[:6]}"
    page.load_api(quick_graph(name))
    page.browser.evaluate(_SHOW)
    assert page.missing_nodes() == []
    assert page.text("word") == "Not started"
    page.run()
    page.wait_for("Done")
    assert page.text("choices").startswith("What was chosen, and why")
    page.browser.evaluate("document.querySelector('.adapter-trainer-choices').open = true")
    assert "In datasets/four." in page.text("choices")
    seen = page.browser.evaluate(_SEEN)
    assert seen["rows"] >= 6
    assert seen["hidden_buttons"] == []
    page.browser.evaluate("document.querySelector('.adapter-trainer-choices').open = false")
    assert page.browser.evaluate(_SEEN)["hidden_buttons"] == []
    assert_tells_of_images(page, page.server.data / "datasets" / "four" / "0.txt")
    assert_pasted_shows_the_same(page)

    before = page.queued()
    steps = page.steps_to_undo()
    page.press_button(LABEL)
    page.browser.wait("return window.app.graph.nodes.length === 9")
    page.browser.wait("return document.body.textContent.includes('Ctrl+Z takes both back')")
    assert kinds(page) == CHAIN | {"AdapterTrainerQuick", "ImageInvert"}
    assert page.browser.evaluate(_OVERLAPS) == []
    time.sleep(0.6)  # the view moves to the new nodes
    # The same settings mean the same run.
    page.browser.wait(f"return ({_WORDS}).join() === 'Done,Done'")

    queued = page.queued()
    status, told = page.server.post("/adapter_trainer/full_graph", {**ANSWERS, "name": name})
    assert status == 200
    # The quick node is bypassed, so that it is not queued; what hung on it hangs on the new one.
    assert values(queued) == {**values(told["nodes"]), "ImageInvert": {}}
    train = next(k for k, node in queued.items() if node["class_type"] == "AdapterTrainerTrain")
    assert queued["52"]["inputs"]["image"] == [train, 2]

    assert page.steps_to_undo() == steps + 1
    page.browser.press("Control+z")
    page.browser.wait("return window.app.graph.nodes.length === 2", seconds=15)
    assert page.queued() == before
    assert page.problems() == []
