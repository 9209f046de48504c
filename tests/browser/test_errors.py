"""What is wrong is told under the node that has it, and in a toast, in both renderers."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from comfyui.conftest import write_images
from comfyui.graphs import graph

BOX = ".adapter-trainer-error:not([hidden])"
TOAST = ".p-toast-message"

_SHOW = """
const node = window.app.graph.nodes.find((n) => n.type === argument);
const { ds } = window.app.canvas;
ds.scale = 1;
ds.offset[0] = 420 - node.pos[0];
ds.offset[1] = 160 - node.pos[1];
window.app.canvas.setDirty(true, true);
"""

_OUTSIDE = """
const node = window.app.graph.nodes.find((n) => n.type === argument);
const canvas = window.app.canvas.canvas.getBoundingClientRect();
const { scale, offset } = window.app.canvas.ds;
const left = canvas.left + (node.pos[0] + offset[0]) * scale;
const top = canvas.top + (node.pos[1] + offset[1]) * scale;
const element = document.querySelector(".adapter-trainer-error:not([hidden])");
const box = element.getBoundingClientRect();
const right = left + node.size[0] * scale, bottom = top + node.size[1] * scale;
const last = Math.max(...[...element.children].map((e) => e.getBoundingClientRect().bottom));
return [left - box.left, box.right - right, top - box.top, box.bottom - bottom, last - box.bottom];
"""

_SET = """
const [type, name, value] = argument;
const node = window.app.graph.nodes.find((n) => n.type === type);
const widget = node.widgets.find((w) => w.name === name);
widget.value = value;
widget.callback?.(value);
"""

_RED = """
const [type, name] = argument;
const node = window.app.graph.nodes.find((n) => n.type === type);
return node.inputs.filter((each) => each.hasErrors).map((each) => each.name).join() === name;
"""

_NOT_RED = """
const { graph, lastNodeErrors } = window.app;
const red = graph.nodes.some((n) => n.has_errors || n.inputs?.some((each) => each.hasErrors));
return !red && !Object.keys(lastNodeErrors ?? {}).length && !document.querySelector(
  "[data-node-id] .outline-node-stroke-error, [data-node-id] .border-node-stroke-error");
"""
DATASET_CLASS = "AdapterTrainerDatasetFolder"


@pytest.fixture
def torn(server) -> Iterator[Path]:
    folder = write_images(server.data / "datasets" / "torn")
    (folder / "2.png").write_text("no image")
    yield folder
    shutil.rmtree(folder)


def press_run(page, node_class: str) -> None:
    """Press Run and bring the box into view; ComfyUI's own message is put away."""
    page.run()
    page.wait_for_count(BOX, 1)
    page.browser.evaluate(_SHOW, node_class)


def said(page) -> list[str]:
    """The sentences of the box, and the words of its button."""
    parts = "return [...document.querySelector(argument).children].filter((e) => e.offsetHeight)"
    return page.browser.evaluate(f"{parts}.map((e) => e.textContent)", BOX)


def wait_until_gone(page) -> None:
    page.browser.wait("return !document.querySelector(argument)", BOX)


def assert_inside(page, node_class: str) -> None:
    page.browser.wait(f"return (() => {{{_OUTSIDE}}})().every((each) => each <= 2)", node_class)


def test_a_torn_image_is_told_under_the_dataset(page, torn):
    page.load_api(graph("torn", dataset={"folder": "datasets/torn"}))
    press_run(page, DATASET_CLASS)
    sentences = [
        "datasets/torn/2.png cannot be read as an image (its content is no image)",
        "Expected: whole images as PNG, JPEG, WebP, AVIF, HEIC or BMP",
        "To do: Save the images again with an image editor, or set unreadable to skip.",
    ]
    assert said(page) == [*sentences, "Show unreadable"]
    page.wait_for_count(TOAST, 1)
    toast = "return document.querySelector(argument).innerText"
    assert page.browser.evaluate(toast, f"{TOAST}-text .p-toast-detail").split("\n") == sentences
    errors = page.browser.evaluate("return Object.values(window.app.lastNodeErrors)")
    assert [(each["class_type"], len(each["errors"])) for each in errors] == [(DATASET_CLASS, 1)]
    # Red is the input that cures, not the one that was looked at.
    page.browser.wait(_RED, [DATASET_CLASS, "unreadable"])
    assert_inside(page, DATASET_CLASS)

    page.browser.click(f"{BOX} button")
    page.browser.wait(
        "return window.app.graph.nodes.find((n) => n.type === argument).showAdvanced", DATASET_CLASS
    )
    assert_inside(page, DATASET_CLASS)
    page.browser.evaluate(_SET, [DATASET_CLASS, "unreadable", "skip"])
    wait_until_gone(page)
    page.browser.evaluate(_SET, [DATASET_CLASS, "unreadable", "error"])
    press_run(page, DATASET_CLASS)
    page.browser.wait(_RED, [DATASET_CLASS, "unreadable"])
    # Mended in another program: neither the box nor ComfyUI's red stays.
    shutil.copyfile(torn / "1.png", torn / "2.png")
    page.browser.evaluate("window.dispatchEvent(new Event('focus'))")
    wait_until_gone(page)
    page.browser.wait(_NOT_RED)
    page.browser.forget_problems()
