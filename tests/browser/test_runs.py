"""The runs tab in ComfyUI's sidebar: all runs, one of them, and two beside each other."""

import json
import uuid
from pathlib import Path

import pytest
from comfyui.graphs import (
    SETTINGS,
    STEPS,
    cancelled,
    changed,
    checkpoints,
    graph,
    hold,
    record,
    release,
    run_folder,
    runs,
    wait_until_held,
)

pytestmark = pytest.mark.exhaustive

OPEN = ".adapter-trainer-runs-tab-button"
ROW = ".adapter-trainer-runs-row"
NAMES = "return [...document.querySelectorAll(argument)].map((each) => each.textContent)"
DISK = "document.querySelector('.adapter-trainer-runs-disk')"
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
const button = found.find((each) => each.textContent.startsWith(argument));
button?.click();
return Boolean(button);
"""
CHOOSE = """
const select = document.querySelector(argument[0]);
select.value = argument[1];
select.dispatchEvent(new Event("change"));
"""
# Fields whose hint is wider than they are, numbers that leave a chart, and room that is left free.
CUT = """
const tab = document.querySelector(".adapter-trainer-runs");
const pen = document.createElement("canvas").getContext("2d");
const width = (e) => ((pen.font = getComputedStyle(e).font), pen.measureText(e.placeholder).width);
const right = (e) => e.getBoundingClientRect().right;
return [
  ...[...tab.querySelectorAll("input[placeholder]")].filter((e) => width(e) + 14 > e.clientWidth),
  ...[...tab.querySelectorAll("text")].filter((e) => right(e) > right(e.closest("svg")) + 1),
  ...(tab.clientHeight < 800 ? [tab] : []),
].map((e) => e.placeholder ?? e.textContent);
"""
CONTRASTS = Path(__file__).with_name("contrasts.js").read_text(encoding="utf-8")


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
    page.browser.wait(PRESS, "Use in Load LoRA")
    page.browser.wait("return window.app.graph.nodes.some((n) => n.type === 'LoraLoaderModelOnly')")
    wanted = f"{mark}_b_v0.safetensors"
    chosen = "return window.app.graph.nodes[0].widgets.find((w) => w.name === 'lora_name')"
    assert page.browser.evaluate(f"{chosen}.value") == wanted
    assert page.browser.evaluate(f"{chosen}.options.values").count(wanted) == 1
    page.browser.wait(PRESS, "Load workflow")
    page.browser.wait("return window.app.graph.nodes.some((n) => n.type === 'AdapterTrainerTrain')")
    close(page)


def open_run(page, mark):
    """Open the tab with one run chosen."""
    page.browser.evaluate("await window.app.loadGraphData({ nodes: [], links: [], version: 0.4 })")
    open_tab(page)
    search(page, mark, 1)
    page.browser.click(ROW)
    # What another test has chosen is shown until this one is read.
    page.browser.wait(
        "return document.querySelector('.adapter-trainer-runs-title')?.textContent"
        ".startsWith(argument)",
        mark,
    )


def open_tab(page):
    """Open the tab, also where another test has failed with it open."""
    if not page.count(".adapter-trainer-runs"):
        page.browser.click(OPEN)
    page.wait_for_count(".adapter-trainer-runs", 1)


def open_disk(page):
    """Open what the run takes, which stays open from run to run."""
    if not page.browser.evaluate(f"return {DISK}.open"):
        page.browser.click(".adapter-trainer-runs-disk summary")
    page.browser.wait(f"return {DISK}.open")


def close(page):
    page.browser.click(OPEN)
    page.browser.wait("return !document.querySelector(argument)", ROW)
    assert page.problems() == []


def shown_toast(page, text):
    page.browser.wait(
        "return [...document.querySelectorAll('.p-toast-detail')]"
        ".some((each) => each.textContent.includes(argument))",
        text,
    )


def test_what_is_cleaned_up_is_said_and_undone(page):
    mark = unique("waste")
    run = trained(page, mark)
    folder = run_folder(page.server, mark)
    open_run(page, mark)
    open_disk(page)
    page.browser.click(".adapter-trainer-runs-disk input[value=checkpoints]")
    loss = page.text("runs-disk .adapter-trainer-runs-loss")
    assert loss.startswith("1 checkpoint, ")
    assert loss.endswith("; the adapter stays; it cannot be continued then.")
    page.browser.wait(PRESS, "Clean up")
    page.wait_for_count(".adapter-trainer-runs-trash li", 1)
    assert checkpoints(folder) == []
    page.browser.wait("return !document.querySelector('input[value=checkpoints]')")
    page.browser.wait(PRESS, "Undo")
    page.browser.wait("return document.querySelector('.adapter-trainer-runs-trash').hidden")
    assert checkpoints(folder) == [STEPS]

    page.browser.wait("return Boolean(document.querySelector('input[value=checkpoints]'))")
    page.browser.click(".adapter-trainer-runs-disk input[value=run]")
    assert "1 adapter, 1 checkpoint" in page.text("runs-disk .adapter-trainer-runs-loss")
    page.browser.wait(PRESS, "Clean up")
    page.browser.wait("return document.querySelectorAll(argument).length === 0", ROW)
    assert run in page.text("runs-trash")
    page.browser.wait(PRESS, "Empty the trash")
    page.browser.wait("return document.querySelector('.adapter-trainer-runs-trash').hidden")
    assert runs(page.server, mark) == []
    close(page)


def test_a_run_is_continued_made_longer_and_begun_from_a_checkpoint(page):
    mark = unique("on")
    nodes = changed(graph(mark), SETTINGS, checkpoint_every=4)
    cancelled(page.server, nodes, 6)
    folder = run_folder(page.server, mark)
    assert record(folder)["status"] == "cancelled"
    open_run(page, mark)
    page.browser.wait(PRESS, "Continue")
    page.server.wait(lambda: record(folder)["status"] == "done", 120)
    shown_toast(page, "It goes on from step")

    search(page, f"{mark} done", 1)
    page.browser.fill(".adapter-trainer-runs-more", "4")
    page.browser.wait(PRESS, "Train longer")
    page.server.wait(lambda: record(folder)["step"] == STEPS + 4, 120)
    page.browser.wait(
        "return [...document.querySelectorAll('.adapter-trainer-runs-from option')]"
        ".some((each) => each.value === argument)",
        str(STEPS + 4),
    )
    page.server.wait(lambda: page.server.remaining() == 0, 60)
    written = (folder / f"{mark}.safetensors").stat().st_mtime_ns
    page.browser.evaluate(CHOOSE, [".adapter-trainer-runs-from", "4"])
    page.browser.wait(PRESS, "Go on from here")
    page.server.wait(lambda: (folder / f"{mark}.safetensors").stat().st_mtime_ns > written, 120)
    page.server.wait(lambda: page.server.remaining() == 0, 60)
    assert runs(page.server, mark) == [folder]

    page.browser.wait(PRESS, "Same with other settings")
    shown_toast(page, "resume is off")
    resume = (
        "return window.app.graph.nodes.find((n) => n.type === 'AdapterTrainerTrain')"
        ".widgets.find((w) => w.name === 'resume').value"
    )
    assert page.browser.evaluate(resume) is False
    page.run()
    page.server.wait(lambda: len(runs(page.server, mark)) > 1, 120)
    close(page)


def test_a_runs_folder_is_shown_or_its_path_copied(page):
    mark = unique("folder")
    trained(page, mark)
    open_run(page, mark)
    page.browser.wait(PRESS, "Open folder")
    shown = page.server.data / "desktop" / "shown"
    page.server.wait(lambda: shown.is_file() and shown.read_text().endswith(f"{mark}/v0"), 30)
    close(page)


def test_the_queue_is_listed_and_one_that_waits_cancelled(page):
    mark = unique("queue")
    hold(page.server, 3)
    first = page.server.queue(graph(f"{mark}_first"))
    wait_until_held(page.server)
    page.server.queue(graph(f"{mark}_second"))
    page.server.queue(graph(f"{mark}_third"))
    open_tab(page)
    page.wait_for_count(".adapter-trainer-runs-waiting button", 2)
    lines = page.browser.evaluate(NAMES, ".adapter-trainer-runs-queue li")
    assert lines[0].startswith(f"{mark}_first {STEPS} steps, runs")
    assert lines[1].startswith(f"{mark}_second {STEPS} steps, waits for {mark}_first")
    assert f"waits for {mark}_first and 1 more" in lines[2]
    page.browser.click(f"[aria-label='Cancel {mark}_third']")
    page.browser.wait(
        "return document.querySelectorAll('.adapter-trainer-runs-waiting button').length === 1"
    )
    release(page.server)
    page.server.result(first)
    page.server.wait(lambda: page.server.remaining() == 0, 60)
    page.browser.wait("return document.querySelector('.adapter-trainer-runs-queue').hidden")
    assert runs(page.server, f"{mark}_third") == []
    assert len(runs(page.server, f"{mark}_second")) == 1
    close(page)


def test_all_of_it_is_reached_by_keys(page):
    mark = unique("keys")
    trained(page, mark)
    open_run(page, mark)
    reached = []
    page.browser.focus(".adapter-trainer-runs-search")
    focused = """
    const at = document.activeElement;
    if (!document.querySelector(".adapter-trainer-runs").contains(at)) return "";
    const drawn = getComputedStyle(at);
    const ring = drawn.outlineStyle !== "none" && drawn.outlineWidth !== "0px";
    return [at.getAttribute("aria-label") || at.textContent || at.value || at.type, ring].join("|");
    """
    while name := page.browser.evaluate(focused):
        assert len(reached) < 60
        reached.append(name.rpartition("|")[0])
        assert name.endswith("|true"), name
        page.browser.press("Tab")
    wanted = {"Order of runs", f"Compare {mark}/v0", f"Favourite: {mark}/v0", "Load workflow"}
    wanted |= {"Open folder", "Train longer", "Go on from here", "Same with other settings"}
    assert wanted | {"Checkpoint", "Curve"} <= set(reached)
    page.browser.focus(f"[data-run-key='{mark}/v0 star']")
    page.browser.press("Enter")
    page.browser.wait(
        "return document.querySelector(argument)?.getAttribute('aria-pressed') === 'true'",
        f"[data-run-key='{mark}/v0 star']",
    )
    star = "return document.activeElement.getAttribute('data-run-key')"
    assert page.browser.evaluate(star) == f"{mark}/v0 star"
    page.browser.evaluate(f"{DISK}.open = false")
    page.browser.focus(".adapter-trainer-runs-disk summary")
    page.browser.press("Enter")
    page.browser.wait(f"return {DISK}.open")
    page.browser.press("Tab")
    page.browser.press("Space")
    assert "it cannot be continued then" in page.text("runs-disk .adapter-trainer-runs-loss")
    close(page)


@pytest.mark.parametrize("palette", ["dark", "light"])
def test_every_text_can_be_read(page, palette):
    mark = unique("read")
    trained(page, mark)
    page.browser.evaluate(
        "await window.app.extensionManager.setting.set('Comfy.ColorPalette', argument)", palette
    )
    try:
        open_run(page, mark)
        page.wait_for_count(LINE, 1)
        open_disk(page)
        page.browser.click(".adapter-trainer-runs-disk input[value=samples]")
        found = page.browser.evaluate(CONTRASTS, ".adapter-trainer-runs")
        assert len(found) > 20
        assert [each for each in found if each[0] < 4.5] == []
        assert page.browser.evaluate(CUT) == []
        close(page)
    finally:
        page.browser.evaluate(
            "await window.app.extensionManager.setting.set('Comfy.ColorPalette', 'dark')"
        )


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
    page.browser.wait(PRESS, "Stop and keep")
    search(page, f"{name} stopped", 1)
    page.browser.wait(HAS_BUTTON, "Copy path")
    close(page)
