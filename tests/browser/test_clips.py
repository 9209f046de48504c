"""Previews of clips move in the panel, in its large view and beside another step."""

from __future__ import annotations

import time

import pytest
from browser.test_panel import THUMBNAIL, unique
from comfyui.clip_files import write_clip
from comfyui.test_graph_clips import FRAMES, IMAGES, clips_graph

pytestmark = pytest.mark.exhaustive

LARGE, OTHER = ".adapter-trainer-large", ".adapter-trainer-other"
_PLACED = "return document.querySelector(argument).naturalWidth > 0"


def looks(page, selector, seconds=1.5) -> int:
    """In how many ways an element looks within a time."""
    page.browser.wait(_PLACED, selector)
    end, seen = time.monotonic() + seconds, set()
    while time.monotonic() < end:
        seen.add(page.browser.look(selector))
    return len(seen)


def test_previews_of_clips_move(page):
    name = unique("moving")
    write_clip(page.server.data / "datasets" / name, 64, 2 * FRAMES, 16)
    nodes = clips_graph(name, name)
    del nodes[IMAGES]
    page.load_api(nodes)
    page.run()
    page.wait_for("Done")
    page.wait_for_count(THUMBNAIL, 3)
    assert looks(page, f"{THUMBNAIL} img") > 2
    page.browser.click(THUMBNAIL)
    assert looks(page, LARGE) > 2
    page.browser.click("dialog .adapter-trainer-compare input[type=checkbox]")
    assert looks(page, OTHER) > 2
    assert page.problems() == []
