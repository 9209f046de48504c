"""ComfyUI's page with a graph on it, as a person sees it."""

import time
from typing import Any

from browser.browser import Browser
from comfyui.server import ComfyServer

RENDERERS = ("canvas", "nodes2")
PANEL = ".adapter-trainer-panel"

# What belongs to this pack: its files and routes, its nodes, and its extensions.
_OURS = ("adapter-trainer", "adapter_trainer", "AdapterTrainer")
_EXPECTED = (
    # A state that does not exist yet is answered with 404, which the browser logs.
    "/api/adapter_trainer/state",
    # As is a folder that a workflow names and that is not there: the node says so.
    "/api/adapter_trainer/dataset/report",
)


# A node's button is drawn on the canvas in the one renderer, and an element in the other.
_FIND_BUTTON = """
for (const each of document.querySelectorAll("button")) {
  if (each.textContent.trim() === argument) each.id = "the-button";
}
return Boolean(document.getElementById("the-button"));
"""
# What ComfyUI keeps has the workflow as text within text.
_IS_KEPT = """
const kept = [localStorage, sessionStorage].flatMap((each) => Object.values({ ...each }));
const plain = kept.map((text) => text.replaceAll("\\\\", ""));
const values = window.app.graph.serialize().nodes.map((n) => JSON.stringify(n.widgets_values));
return plain.some((text) => values.every((v) => text.includes(v?.replaceAll("\\\\", "") ?? "")));
"""
_PLACE_OF_BUTTON = """
const { canvas, graph } = window.app;
const named = (node) => node.widgets?.find((each) => each.name === argument);
const node = graph.nodes.find(named);
const place = [node.pos[0] + node.size[0] / 2, node.pos[1] + named(node).y + 10];
return place.map((value, i) => (value + canvas.ds.offset[i]) * canvas.ds.scale);
"""
# ComfyUI looks for changes at many moments, on a slow machine also right before it undoes.
_STEPS_TO_UNDO = """
const { changeTracker } = window.app.extensionManager.workflow.activeWorkflow;
changeTracker.captureCanvasState();
return changeTracker.undoQueue.length;
"""


class GraphPage:
    """A page of ComfyUI in one renderer."""

    def __init__(self, server: ComfyServer, browser: Browser, renderer: str) -> None:
        self.server = server
        self.browser = browser
        self.renderer = renderer

    def open(self) -> None:
        """Open the page again with its renderer, in the dark theme."""
        status, _ = self.server.post(
            "/settings",
            {
                "Comfy.VueNodes.Enabled": self.renderer == "nodes2",
                "Comfy.ColorPalette": "dark",
                "Comfy.TutorialCompleted": True,
            },
        )
        assert status == 200
        self.browser.open()

    def reload(self) -> None:
        """Reload the page once ComfyUI has kept the workflow as it is now, which it does later."""
        self.browser.wait(_IS_KEPT)
        self.browser.reload()

    def load_api(self, prompt: dict[str, Any]) -> None:
        """Load a workflow in API format, laid out by ComfyUI, through the UI format."""
        workflow = self.browser.evaluate(
            """await window.app.loadApiJson(argument, "test");
            window.app.graph.arrange();
            return window.app.graph.serialize();""",
            prompt,
        )
        self.load(workflow)

    def load(self, workflow: dict[str, Any]) -> None:
        """Load a workflow in UI format and bring the train node into view."""
        self.browser.evaluate("await window.app.loadGraphData(argument)", workflow)
        self.show_train_node()

    def show_train_node(self) -> None:
        """Put the train node into the middle of the page at its natural size."""
        self.browser.wait(
            """const app = window.app;
            const node = app.graph.nodes.find((n) => n.type === "AdapterTrainerTrain");
            if (!node) return true;
            app.canvas.ds.scale = 1;
            app.canvas.ds.offset[0] = 480 - node.pos[0];
            app.canvas.ds.offset[1] = 110 - node.pos[1];
            app.canvas.setDirty(true, true);
            const box = document.querySelector(argument)?.getBoundingClientRect();
            return box && box.width > 100 && box.height > 100;""",
            PANEL,
        )
        time.sleep(0.3)

    def settle(self, seconds: float = 30) -> None:
        """Wait until no node changes its size any more."""
        self.browser.wait(
            """const sizes = () => JSON.stringify(window.app.graph.nodes.map((n) => [...n.size]));
            const before = sizes();
            await new Promise((resolve) => setTimeout(resolve, 500));
            return sizes() === before;""",
            seconds=seconds,
        )

    def run(self) -> None:
        """Press Run."""
        self.browser.evaluate("await window.app.queuePrompt(0)")

    def press_button(self, label: str) -> None:
        """Press a node's button."""
        if self.renderer == "canvas":
            self.browser.click("#graph-canvas", self.browser.evaluate(_PLACE_OF_BUTTON, label))
        else:
            self.browser.wait(_FIND_BUTTON, label)
            self.browser.click("#the-button")

    def queued(self) -> dict[str, Any]:
        """The prompt that the page would queue."""
        return self.browser.evaluate("return (await window.app.graphToPrompt()).output")

    def steps_to_undo(self) -> int:
        """How many changes ComfyUI would take back."""
        return self.browser.evaluate(_STEPS_TO_UNDO)

    def text(self, name: str) -> str:
        """The text of a part of the panel; the name is its class without the prefix."""
        return self.browser.evaluate(
            "return document.querySelector(argument)?.textContent ?? ''", f".adapter-trainer-{name}"
        )

    def count(self, selector: str) -> int:
        """How many elements match."""
        return self.browser.evaluate("return document.querySelectorAll(argument).length", selector)

    def stats(self) -> list[str]:
        """Step, loss, time per step, time left."""
        return self.browser.evaluate(
            "return [...document.querySelectorAll(argument)].map((e) => e.textContent)",
            f"{PANEL} dd",
        )

    def path(self, name: str) -> str:
        """The SVG path of a line: ``raw``, ``smoothed`` or ``rate``."""
        return self.browser.evaluate(
            "return document.querySelector(argument)?.getAttribute('d') ?? ''",
            f"{PANEL} path.adapter-trainer-{name}",
        )

    def missing_nodes(self) -> list[str]:
        """Types of nodes in the graph that ComfyUI does not know."""
        return self.browser.evaluate(
            """const known = window.LiteGraph.registered_node_types;
            return window.app.graph.nodes.map((n) => n.type).filter((type) => !(type in known));"""
        )

    def wait_for(self, word: str, seconds: float = 120) -> None:
        """Wait until the panel shows a status."""
        self.browser.wait(
            "return document.querySelector('.adapter-trainer-word')?.textContent === argument",
            word,
            seconds,
        )

    def wait_for_count(self, selector: str, count: int, seconds: float = 60) -> None:
        """Wait until at least so many elements match."""
        self.browser.wait(
            "return document.querySelectorAll(argument[0]).length >= argument[1]",
            [selector, count],
            seconds,
        )

    def problems(self) -> list[str]:
        """Errors on the page that this pack has made; ComfyUI's own are not looked at."""
        found = (each for each in self.browser.problems() if any(word in each for word in _OURS))
        return [each for each in found if not any(word in each for word in _EXPECTED)]
