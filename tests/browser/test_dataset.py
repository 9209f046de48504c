"""Images that are dropped on a node, its strip, and captions that are edited there."""

import json
import uuid

import pytest
from browser.page import RENDERERS, GraphPage
from fixtures.combinations import some
from PIL import Image, ImageDraw

THUMBNAIL = ".adapter-trainer-dataset-image"
DIALOG = ".adapter-trainer-dataset-dialog"
TEXT = ".adapter-trainer-dataset-text"
_TALLEST = 150

_ADD_NODE = """
const { app, LiteGraph } = window;
app.graph.clear();
const node = LiteGraph.createNode(argument);
app.graph.add(node);
node.pos = [200, 80];
app.canvas.ds.scale = 1;
app.canvas.ds.offset[0] = 100;
app.canvas.ds.offset[1] = 40;
app.canvas.setDirty(true, true);
"""

_DROP = """
const transfer = new DataTransfer();
for (const [name, content] of Object.entries(argument)) {
  let blob = new Blob([content]);
  if (/png$/.test(name) && !content) {
    const canvas = document.createElement("canvas");
    [canvas.width, canvas.height] = [640, 400];
    const context = canvas.getContext("2d");
    context.fillStyle = "gold";
    context.fillRect(200, 100, 200, 200);
    blob = await new Promise((done) => canvas.toBlob(done));
  }
  transfer.items.add(new File([blob], name));
}
const options = { dataTransfer: transfer, bubbles: true, cancelable: true };
const strip = document.querySelector(".adapter-trainer-dataset");
strip.dispatchEvent(new DragEvent("dragover", options));
strip.dispatchEvent(new DragEvent("drop", options));
"""

_OUTSIDE = """
const { app } = window;
const node = app.graph.nodes[0];
const canvas = app.canvas.canvas.getBoundingClientRect();
const { scale, offset } = app.canvas.ds;
const left = canvas.left + (node.pos[0] + offset[0]) * scale;
const top = canvas.top + (node.pos[1] + offset[1]) * scale;
const box = document.querySelector(".adapter-trainer-dataset").getBoundingClientRect();
return [left - box.left, box.right - left - node.size[0] * scale, top - box.top,
  box.bottom - top - node.size[1] * scale, box.height - argument];
"""

_FOLDER = "return window.app.graph.nodes[0].widgets.find((w) => w.name === 'folder').value"


def part(page, name: str) -> str:
    return page.text(f"dataset-{name}")


def wait_for_text(page, name: str, text: str) -> None:
    page.browser.wait(
        "return document.querySelector(argument[0])?.textContent.includes(argument[1])",
        [f".adapter-trainer-dataset-{name}", text],
    )


def add_node(page, kind: str = "AdapterTrainerDatasetFolder") -> None:
    page.browser.evaluate(_ADD_NODE, kind)
    page.wait_for_count(THUMBNAIL, 1)


def assert_inside(page) -> None:
    outside = page.browser.evaluate(_OUTSIDE, _TALLEST)
    assert all(each <= 1 for each in outside), outside


def upload(page, name: str, files: dict[str, str]) -> None:
    page.browser.evaluate(_DROP, files)
    page.browser.wait("return document.querySelector(argument)", ".adapter-trainer-dataset-name")
    # What was dropped is shown, and no longer the folder before.
    shown = "return [...document.querySelectorAll(argument)].map((e) => e.title)"
    assert page.browser.evaluate(shown, THUMBNAIL) == [n for n in files if n.endswith(".png")]
    # A Run would not train the folder from before.
    assert any("Upload" in str(n["inputs"].get("folder")) for n in page.queued().values())
    page.browser.fill(".adapter-trainer-dataset-name", name)
    page.browser.press("Enter")
    wait_for_text(page, "notice", name)
    # Until the folder is read, the strip has the files themselves, which open nothing.
    page.browser.wait("return document.querySelector(argument)", f"button{THUMBNAIL}")


@pytest.fixture(scope="module", params=some(RENDERERS, "nodes2"))
def opened(request, server, browser) -> GraphPage:
    page = GraphPage(server, browser, request.param)
    page.open()
    return page


def test_dropped_images_are_shown_and_their_captions_edited_and_taken_back(page):
    name = f"drop_{uuid.uuid4().hex[:6]}"
    folder = page.server.data / "input" / name
    add_node(page)
    assert part(page, "count").startswith("40 images")
    assert_inside(page)

    upload(page, name, {"a.png": "", "a.txt": "a golden box", "b.png": "", "c.png": "broken"})
    assert page.browser.evaluate(_FOLDER) == f"input/{name}"
    assert sorted(path.name for path in folder.iterdir()) == ["a.png", "a.txt", "b.png"]
    wait_for_text(page, "count", "2 images, 1 without a caption")
    wait_for_text(page, "line", "1 left out")
    page.browser.wait(
        "return [...document.querySelectorAll(argument)].every((i) => i.naturalWidth > 0)",
        f"{THUMBNAIL} img",
    )
    assert_inside(page)

    page.browser.click(f"{THUMBNAIL}.adapter-trainer-grave")
    page.browser.wait("return document.querySelector(argument)?.disabled === false", TEXT)
    wait_for_text(page, "title", "2 of 2: b.png")
    assert "trained at 640" in part(page, "size")
    page.browser.fill(TEXT, "another box")
    page.browser.focus(TEXT)
    page.browser.press("PageUp")
    wait_for_text(page, "title", "a.png")
    assert (folder / "b.txt").read_text() == "another box\n"
    page.browser.press("Escape")
    page.browser.wait("return !document.querySelector(argument)", DIALOG)
    wait_for_text(page, "count", "2 images")

    page.reload()
    page.wait_for_count(THUMBNAIL, 2)
    page.browser.click(THUMBNAIL)
    page.browser.wait("return document.querySelector(argument)?.value", TEXT)
    press(page, ".adapter-trainer-dataset-buttons", "Undo")
    wait_for_text(page, "status", "b.txt is as it was before")
    assert not (folder / "b.txt").exists()
    page.browser.press("Escape")
    wait_for_text(page, "count", "2 images, 1 without a caption")
    assert page.problems() == []


_PRESS = """
const [place, words] = argument;
const all = [...document.querySelectorAll(`${place} button`)];
const found = all.find((button) => button.textContent.includes(words));
if (!found || found.offsetParent === null) return false;
found.click();
return true;
"""

_DRAG = """
const frame = document.querySelector(".adapter-trainer-dataset-frame");
const box = frame.getBoundingClientRect();
const [x, y] = [box.left + box.width / 2, box.top + box.height / 2];
for (const [type, by] of [["pointerdown", 0], ["pointermove", 4000], ["pointerup", 4000]]) {
  const options = { clientX: x + by, clientY: y + by, pointerId: 1 };
  frame.dispatchEvent(new PointerEvent(type, options));
}
"""

_PLACE = "return document.querySelector('.adapter-trainer-dataset-frame').style.cssText"
_ZOOM = "window.app.canvas.ds.scale = argument; window.app.canvas.setDirty(true, true);"
# All sentences of the strip are in sight, in letters that can be read.
_WHOLE = """
const parts = [".adapter-trainer-dataset-count", ".adapter-trainer-dataset-line"];
return Boolean(document.querySelector("[data-far]")) === argument < 0.65 && parts.every((part) => {
  const each = document.querySelector(part);
  const box = each.parentElement.getBoundingClientRect(), own = each.getBoundingClientRect();
  return each.scrollHeight <= each.clientHeight + 1 && own.right <= box.right + 1
    && parseFloat(getComputedStyle(each).fontSize) * argument >= 7.9;
});
"""
_TRIGGER = """
const widget = window.app.graph.nodes[0].widgets.find((w) => w.name === "trigger_word");
widget.value = argument;
widget.callback?.(argument);
"""


def press(page, place: str, words: str) -> None:
    page.browser.wait(_PRESS, [place, words])


def assert_whole_at_any_zoom(page) -> None:
    for zoom in (0.64, 0.4, 1):
        page.browser.evaluate(_ZOOM, zoom)
        page.browser.wait(_WHOLE, zoom, 20)


@pytest.mark.exhaustive
def test_a_folder_without_captions_is_made_ready_on_the_node(page):
    """The trigger word everywhere, one text replaced, an image left out, another cut elsewhere."""
    name = f"bare_{uuid.uuid4().hex[:6]}"
    folder = page.server.data / "input" / name
    add_node(page)
    page.browser.evaluate(_DROP, {"a.png": "", "b.png": "", "c.png": "", "d.heic": "x"})
    # Before the folder has a name.
    wait_for_text(page, "line", "3 images, 3 without a caption")
    wait_for_text(page, "line", "1 left out")
    assert "of 3 images" not in part(page, "line")
    page.browser.fill(".adapter-trainer-dataset-name", name)
    page.browser.press("Enter")
    wait_for_text(page, "count", "3 images, 3 without a caption")
    page.browser.evaluate(_TRIGGER, "ohwx")
    assert_whole_at_any_zoom(page)
    press(page, ".adapter-trainer-dataset-line", "ohwx")
    page.browser.wait(
        "return document.querySelector(argument).textContent === '3 images'",
        ".adapter-trainer-dataset-count",
    )
    assert {path.read_text() for path in folder.glob("*.txt")} == {"ohwx\n"}

    page.browser.click(THUMBNAIL)
    page.browser.wait("return document.querySelector(argument)?.value === 'ohwx'", TEXT)
    press(page, ".adapter-trainer-dataset-buttons", "Leave out")
    wait_for_text(page, "size", "Left out")
    page.browser.focus(TEXT)
    page.browser.press("PageDown")
    wait_for_text(page, "title", "b.png")
    page.browser.evaluate("document.querySelector('.adapter-trainer-dataset-bulk').open = true")
    fields = ".adapter-trainer-dataset-bulk .adapter-trainer-dataset-name"
    page.browser.fill(f"{fields}[aria-label=Find]", "ohwx")
    page.browser.fill(f"{fields}[aria-label=Text]", "a box, ohwx")
    press(page, ".adapter-trainer-dataset-bulk", "Replace")
    wait_for_text(page, "status", "2 captions changed")
    assert [(folder / f"{each}.txt").read_text() for each in "abc"] == [
        *("ohwx\n", "a box, ohwx\n", "a box, ohwx\n")
    ]
    place = page.browser.evaluate(_PLACE)
    page.browser.evaluate(_DRAG)
    choices = folder / ".adapter_trainer.json"
    page.server.wait(lambda: "b.png" in choices.read_text(), 20)
    press(page, ".adapter-trainer-dataset-buttons", "Leave out")
    wait_for_text(page, "size", "Left out")
    press(page, ".adapter-trainer-dataset-buttons", "Undo")
    wait_for_text(page, "status", "b.png is as it was before")
    press(page, ".adapter-trainer-dataset-buttons", "Undo")
    page.browser.wait(f"{_PLACE} === argument", place)
    page.browser.evaluate(_DRAG)
    page.server.wait(lambda: "b.png" in choices.read_text(), 20)
    page.browser.press("Escape")
    wait_for_text(page, "count", "2 of 3 images")
    page.reload()
    wait_for_text(page, "count", "2 of 3 images")
    wait_for_text(page, "line", "1 left out")
    chosen = json.loads(choices.read_text())
    assert (chosen["left_out"], list(chosen["focus"])) == (["a.png"], ["b.png"])
    assert_inside(page)
    assert page.problems() == []


_CHOOSE = """
const widget = window.app.graph.nodes[0].widgets.find((w) => w.name === "folder");
if (!widget.options.values.includes(argument)) widget.options.values.push(argument);
widget.value = argument;
widget.callback?.(argument);
"""
_PROPOSAL = ".adapter-trainer-dataset-proposed"


def draw(path, at, color="#c83c3c"):
    image = Image.new("RGB", (320, 200), "#808080")
    ImageDraw.Draw(image).rectangle([at, 40, at + 90, 160], fill=color)
    path.parent.mkdir(exist_ok=True)
    image.save(path)


def caption_texts(folder):
    return {path.stem: path.read_text() for path in sorted(folder.glob("*.txt"))}


@pytest.mark.exhaustive
def test_proposed_captions_masks_tags_and_images_that_look_alike(page):
    """A graph captions a folder; nothing changes before the captions are taken, and undone."""
    name = f"propose_{uuid.uuid4().hex[:6]}"
    folder = page.server.data / "input" / name
    said = page.server.data / "input" / f"{name}_said"
    texts = ["<b>red</b>, box", "green\nbox", "a box", "x" * 3000]
    for number, (letter, text) in enumerate(zip("abcd", texts, strict=True)):
        for each in (folder, said):
            draw(each / f"{letter}.png", 20 + 60 * number)
        (said / f"{letter}.txt").write_text(text)
    draw(folder / "e.png", 82)  # looks like b
    draw(folder / "a_mask.png", 20, "#ffffff")
    (folder / "a.txt").write_text("mine, box")
    nodes = {
        "1": {"class_type": "LoadImageTextDataSetFromFolder", "inputs": {"folder": f"{name}_said"}},
        "2": {
            "class_type": "AdapterTrainerProposeCaptions",
            "inputs": {"folder": f"input/{name}", "images": ["1", 0], "texts": ["1", 1]},
        },
    }
    page.server.run(nodes)
    assert caption_texts(folder) == {"a": "mine, box"}
    add_node(page)
    page.browser.evaluate(_CHOOSE, f"input/{name}")
    wait_for_text(page, "count", "5 images")
    page.browser.click(THUMBNAIL)
    page.browser.wait("return document.querySelector(argument)?.value === 'mine, box'", TEXT)
    wait_for_text(page, "proposal", "<b>red</b>, box")
    page.browser.wait(
        "return document.querySelector(argument).naturalWidth", ".adapter-trainer-dataset-mask"
    )
    press(page, ".adapter-trainer-dataset-buttons", "Hide mask")
    press(page, ".adapter-trainer-dataset-buttons", "Find images that look alike")
    wait_for_text(page, "status", "2 images look like others")
    press(page, ".adapter-trainer-dataset-buttons", "Next problem")
    wait_for_text(page, "title", "b.png")
    wait_for_text(page, "problems", "Looks like image 5")
    # Another window writes a caption: what was proposed before is not put over it.
    (folder / "c.txt").write_text("theirs")
    wait_for_text(page, "proposal", "green")
    press(page, _PROPOSAL, "Take it")
    page.browser.wait("return document.querySelector(argument)?.value.startsWith('green')", TEXT)
    page.server.wait(lambda: caption_texts(folder).get("b") == "green\nbox\n", 30)
    page.browser.wait(
        "return document.querySelector(argument).textContent.includes('none other')", _PROPOSAL
    )
    press(page, _PROPOSAL, "Take all")
    wait_for_text(page, "status", "captions changed")
    assert caption_texts(folder) == {
        "a": "<b>red</b>, box\n",
        "b": "green\nbox\n",
        "c": "theirs",
        "d": "x" * 3000 + "\n",
    }
    page.browser.evaluate("document.querySelector('.adapter-trainer-dataset-bulk').open = true")
    press(page, ".adapter-trainer-dataset-tags", "box")
    press(page, ".adapter-trainer-dataset-bulk", "Remove this tag")
    wait_for_text(page, "status", "1 caption changed")
    assert caption_texts(folder)["a"] == "<b>red</b>\n"
    assert page.count(f"{DIALOG} b") == 0
    for words in ("a.txt is as it was", "2 captions are as they were", "b.txt is as it was"):
        press(page, ".adapter-trainer-dataset-buttons", "Undo")
        wait_for_text(page, "status", words)
    assert caption_texts(folder) == {"a": "mine, box\n", "c": "theirs"}
    press(page, _PROPOSAL, "Dismiss")
    page.browser.wait("return document.querySelector(argument).hidden", _PROPOSAL)
    page.browser.press("Escape")
    page.browser.wait("return !document.querySelector(argument)", DIALOG)
    assert page.problems() == []
