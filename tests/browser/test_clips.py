"""Previews of clips move in the panel, in its large view and beside another step."""

import base64
import colorsys
import io
import time

import pytest
from browser import test_dataset as strip
from browser.test_panel import THUMBNAIL, unique
from comfyui.clip_files import write_clip
from comfyui.graphs import run_folder
from comfyui.test_graph_clips import FRAMES, IMAGES, clips_graph
from PIL import Image

from trainer_core.inference.preview_files import preview_files, save_preview

pytestmark = pytest.mark.exhaustive

LARGE, OTHER = ".adapter-trainer-large", ".adapter-trainer-other"
_PLACED = "return document.querySelector(argument)?.naturalWidth > 0"


def moves(page, selector, seconds=30) -> bool:
    """Whether an element comes to look in three ways, however slow its screenshots are."""
    page.browser.wait(_PLACED, selector)
    end, looks = time.monotonic() + seconds, set()
    while len(looks) < 3 and time.monotonic() < end:
        looks.add(page.browser.look(selector))
    return len(looks) == 3


def moving_graph(page, name):
    write_clip(page.server.data / "datasets" / name, 64, 2 * FRAMES, 16)
    nodes = clips_graph(name, name)
    del nodes[IMAGES]
    return nodes


def test_previews_of_clips_move(page):
    page.load_api(moving_graph(page, unique("moving")))
    page.run()
    page.wait_for("Done")
    page.wait_for_count(THUMBNAIL, 3)
    assert moves(page, f"{THUMBNAIL} img")
    page.browser.click(THUMBNAIL)
    assert moves(page, LARGE)
    page.browser.click("dialog .adapter-trainer-compare input[type=checkbox]")
    assert moves(page, OTHER)
    assert page.problems() == []


def test_compared_clips_are_at_the_same_moment(page):
    name, count = unique("step"), 12
    nodes = moving_graph(page, name)
    page.server.run(nodes)
    colors = [colorsys.hsv_to_rgb(number / count, 1, 1) for number in range(count)]
    hues = [tuple(round(255 * channel) for channel in color) for color in colors]
    for folder in (run_folder(page.server, name) / "samples").iterdir():
        (file,) = preview_files(folder)
        save_preview([Image.new("RGB", (64, 64), hue) for hue in hues], file, 4.0)
    page.load_api(nodes)
    page.wait_for("Done")
    page.browser.click(THUMBNAIL)
    time.sleep(1)
    page.browser.click("dialog .adapter-trainer-compare input[type=checkbox]")
    time.sleep(1.5)
    seen = []
    for _ in range(8):
        with Image.open(io.BytesIO(page.browser.look(".adapter-trainer-frame"))) as image:
            width, height = image.size
            seen.append([image.convert("RGB").getpixel((x, height // 2)) for x in (9, width - 9)])
    # A screenshot may fall between the two; most do not.
    away = [max(abs(a - b) for a, b in zip(*pair, strict=True)) for pair in seen]
    assert sorted(away)[len(away) // 2] < 30, seen


_DROP_CLIP = """
const bytes = Uint8Array.from(atob(argument), (each) => each.charCodeAt(0));
const transfer = new DataTransfer();
transfer.items.add(new File([bytes], "a.mp4", { type: "video/mp4" }));
transfer.items.add(new File(["a red bar"], "a.txt"));
const options = { dataTransfer: transfer, bubbles: true, cancelable: true };
const element = document.querySelector(".adapter-trainer-dataset");
element.dispatchEvent(new DragEvent("drop", options));
"""


def test_a_dropped_clip_is_shown_and_moves_when_it_is_large(page, tmp_path):
    name = unique("dropped")
    write_clip(tmp_path, 64, 40, 16, "a")
    strip.add_node(page)
    page.browser.evaluate(_DROP_CLIP, base64.b64encode((tmp_path / "a.mp4").read_bytes()).decode())
    page.browser.wait("return document.querySelector(argument)", ".adapter-trainer-dataset-name")
    assert page.browser.evaluate(
        "return document.querySelectorAll(argument).length", f"{strip.THUMBNAIL} video"
    )
    page.browser.fill(".adapter-trainer-dataset-name", name)
    page.browser.press("Enter")
    strip.wait_for_text(page, "count", "1 clip")
    page.server.wait((page.server.data / "input" / name / "a.mp4").is_file, 60)
    cell = f"button{strip.THUMBNAIL}.adapter-trainer-moves"
    page.browser.wait(_PLACED, f"{cell} img")
    page.browser.click(cell)
    page.browser.wait("return document.querySelector(argument)?.value === 'a red bar'", strip.TEXT)
    assert moves(page, ".adapter-trainer-dataset-large")
    assert page.problems() == []
