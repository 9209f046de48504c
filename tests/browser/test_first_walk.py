"""The way of a newcomer, with real clicks: from an empty ComfyUI to an image of KSampler."""

import uuid

import pytest
from browser.page import RENDERERS, GraphPage
from comfyui.server import PACK, ROOT
from fixtures.combinations import some

NAMES = sorted(path.stem for path in (ROOT / "workflows").glob("*.json"))
CARD = "[data-testid='template-workflow-{}']"
RUN = "[data-testid='queue-button']"
MOST_CLICKS = 3

# An element has no name of its own in the list of packs: it gets one here.
_FIND_PACK = """
const found = [...document.querySelectorAll("*")].filter((e) => e.textContent.trim() === argument);
if (found.length) found.at(-1).id = "the-pack";
return found.length > 0;
"""
_CARDS = """
const cards = [...document.querySelectorAll("[data-testid^='template-workflow-']")];
const place = (card) => [card.getBoundingClientRect().top, card.getBoundingClientRect().left];
return cards
  .map((card) => [...place(card), card.dataset.testid.slice("template-workflow-".length)])
  .sort((a, b) => a[0] - b[0] || a[1] - b[1])
  .map(([, , name]) => name);
"""
_LOADED = """
return document.querySelector(argument)?.querySelector("img")?.naturalWidth > 0
  && [...document.querySelectorAll("[data-testid^='template-workflow-'] img")].length > 1;
"""
_OPENED = "return window.app.graph.nodes.some((node) => node.type === 'AdapterTrainerQuick')"
_SHORTEN = """
const quick = window.app.graph.nodes.find((node) => node.type === "AdapterTrainerQuick");
for (const [name, value] of Object.entries(argument)) {
  quick.widgets.find((widget) => widget.name === name).value = value;
}
"""
_IMAGE = """
const node = window.app.graph.nodes.find((each) => each.type === argument);
const element = document.querySelector(`[data-node-id="${node.id}"]`);
const images = element ? [...element.querySelectorAll("img")] : node.imgs ?? [];
const image = images.find((each) => each.naturalWidth > 0);
return image ? [image.naturalWidth, image.naturalHeight] : null;
"""


class Walker:
    """Somebody who has just installed the pack; their clicks are counted."""

    def __init__(self, page: GraphPage) -> None:
        self.page = page
        self.clicks = 0

    def begin(self) -> None:
        """ComfyUI as it is opened for the first time: with its templates."""
        page = self.page
        page.server.post(
            "/settings",
            {"Comfy.VueNodes.Enabled": page.renderer == "nodes2", "Comfy.TutorialCompleted": False},
        )
        page.browser.open()

    def click(self, selector: str) -> None:
        self.page.browser.click(selector)
        self.clicks += 1

    def open_pack(self) -> None:
        """Choose the pack among ComfyUI's templates."""
        self.page.browser.wait(_FIND_PACK, PACK)
        self.click("#the-pack")
        self.page.browser.wait(_LOADED, CARD.format(NAMES[0]))

    def open_template(self, name: str) -> None:
        """Open a template of the pack."""
        self.click(CARD.format(name))
        self.page.browser.wait(_OPENED)


@pytest.fixture(scope="module", params=some(RENDERERS, "nodes2"))
def opened(request, server, browser) -> GraphPage:
    return GraphPage(server, browser, request.param)


def test_three_clicks_from_an_empty_comfyui_to_an_image_of_ksampler(page):
    walker = Walker(page)
    walker.begin()
    walker.open_pack()
    browser = page.browser
    assert browser.evaluate(_CARDS) == NAMES
    walker.open_template("01_first_adapter")
    name = f"walk_{uuid.uuid4().hex[:6]}"
    browser.evaluate(_SHORTEN, {"steps": 2, "name": name, "prompts": "a red diamond"})
    walker.click(RUN)
    assert browser.wait(_IMAGE, "PreviewImage", 300) == [792, 384]
    assert walker.clicks <= MOST_CLICKS
    assert (page.server.data / "models" / "loras" / f"{name}.safetensors").is_file()
    assert page.problems() == []
