"""Strip, panel and folder are those of the node that lives, whatever made it anew."""

import uuid

import pytest
from browser.page import RENDERERS, GraphPage
from browser.test_dataset import upload
from fixtures.combinations import some

_ADD = """
const { app, LiteGraph } = window;
await app.loadGraphData({ nodes: [], links: [], version: 0.4 }, true, true, argument.tab);
const node = LiteGraph.createNode("AdapterTrainerQuick");
app.canvas.emitBeforeChange();
app.graph.add(node);
node.pos = [200, 80];
app.canvas.ds.scale = 1;
app.canvas.ds.offset = [100, 40];
node.widgets.find((w) => w.name === "name").value = argument.tab;
app.canvas.emitAfterChange();
"""
_CHOOSE = """
const { app } = window;
const node = app.canvas.graph.nodes.find((n) => n.type === "AdapterTrainerQuick");
const widget = node.widgets.find((w) => w.name === "folder");
app.canvas.emitBeforeChange();
widget.value = argument;
widget.callback?.(argument);
app.canvas.emitAfterChange();
"""
# Of each node what is on the screen, and not what it holds itself.
_SHOWN = """
const { app } = window;
const places = [...document.querySelectorAll(".adapter-trainer-dataset, .adapter-trainer-panel")];
const nodes = app.canvas.graph.nodes.filter((n) => n.type === "AdapterTrainerQuick");
const mine = (node, name) => {
  const own = node.widgets.find((w) => w.name === name).element;
  const home = own.closest("[data-node-id]")?.dataset.nodeId ?? String(node.id);
  return own.isConnected && own.clientWidth > 0 && home === String(node.id) ? own : null;
};
return {
  strays: places.filter((e) => e.clientWidth > 0).length - 2 * nodes.length,
  nodes: nodes.map((node) => [
    node.widgets.find((w) => w.name === "folder").value,
    mine(node, "dataset")?.querySelector(".adapter-trainer-dataset-count").textContent ?? "gone",
    mine(node, "training")?.querySelector(".adapter-trainer-word").textContent ?? "gone",
  ]),
};
"""
# As the server tells it, to all nodes of the page.
_TELL = """
const { app } = window;
const { id } = app.canvas.graph.nodes.find((n) => n.type === "AdapterTrainerQuick");
const path = app.canvas.graph === app.rootGraph ? `${id}` : `${argument.host}:${id}`;
const detail = { node_id: path, prompt_id: argument.prompt, name: argument.tab, status: "loading" };
app.api.dispatchEvent(new CustomEvent("adapter_trainer.state", { detail }));
"""
_PASTE = """
const { canvas } = window.app;
canvas.select(canvas.graph.nodes.find((n) => n.type === "AdapterTrainerQuick"));
canvas.copyToClipboard();
canvas.pasteFromClipboard();
"""
_INTO_SUBGRAPH = """
const { canvas, rootGraph } = window.app;
const node = rootGraph.nodes.find((n) => n.type === "AdapterTrainerQuick");
canvas.select(node);
const { node: host, subgraph } = rootGraph.convertToSubgraph(new Set([node]));
canvas.openSubgraph(subgraph, host);
canvas.ds.scale = 1;
canvas.ds.offset = [100, 40];
canvas.setDirty(true, true);
return host.id;
"""
SMALL, LARGE = ("demo/demo-own", "12 images"), ("demo/demo-generate", "40 images")


@pytest.fixture(scope="module", params=some(RENDERERS, "nodes2"))
def opened(request, server, browser) -> GraphPage:
    page = GraphPage(server, browser, request.param)
    page.open()
    return page


def execute(page, command: str) -> None:
    page.browser.evaluate("await window.app.extensionManager.command.execute(argument)", command)


def shows(page, *nodes: tuple[str, str], word: str = "Not started") -> None:
    """Wait until the nodes, and nothing else, are on the screen with their own elements."""
    wanted = {"strays": 0, "nodes": [[*node, word] for node in nodes]}
    same = f"const shown = await (async () => {{ {_SHOWN} }})(); window.lastShown = shown;"
    try:
        page.browser.wait(
            f"{same} return JSON.stringify(shown.nodes) === JSON.stringify(argument.nodes)"
            " && shown.strays === argument.strays;",
            wanted,
            seconds=8,
        )
    except AssertionError:
        assert page.browser.evaluate("return window.lastShown") == wanted


def hears(page, tab: str, node: tuple[str, str], host: int = 0) -> None:
    """What the server tells of a run is on the screen; a restore takes it away again."""
    page.browser.evaluate(_TELL, {"tab": tab, "host": host, "prompt": uuid.uuid4().hex})
    shows(page, node, word="Loading")


def test_what_is_on_the_screen_is_the_living_nodes(page):
    tab = f"living_{uuid.uuid4().hex[:6]}"
    page.browser.evaluate(_ADD, {"tab": tab})
    for folder, _ in (SMALL, LARGE):
        page.browser.evaluate(_CHOOSE, folder)
    shows(page, LARGE)
    execute(page, "Comfy.Undo")
    shows(page, SMALL)
    hears(page, tab, SMALL)
    execute(page, "Comfy.Redo")
    shows(page, LARGE)
    execute(page, "Comfy.Undo")
    shows(page, SMALL)

    # What is dropped on the screen is the node's, and is trained.
    upload(page, tab, {"a.png": "", "a.txt": "a box"})
    own = (f"input/{tab}", "1 image")
    shows(page, own)
    (queued,) = page.queued().values()
    assert queued["inputs"]["folder"] == own[0]

    page.browser.evaluate(_ADD, {"tab": f"{tab}_other"})
    page.browser.evaluate(_CHOOSE, LARGE[0])
    shows(page, LARGE)
    execute(page, "Workspace.PreviousOpenedWorkflow")
    shows(page, own)
    hears(page, tab, own)
    execute(page, "Workspace.NextOpenedWorkflow")
    shows(page, LARGE)
    execute(page, "Workspace.PreviousOpenedWorkflow")

    page.browser.evaluate(_PASTE)
    shows(page, own, own)
    execute(page, "Comfy.Undo")
    shows(page, own)
    host = page.browser.evaluate(_INTO_SUBGRAPH)
    shows(page, own)
    hears(page, tab, own, host)
    page.browser.evaluate("window.app.canvas.setGraph(window.app.rootGraph)")
    shows(page)
    execute(page, "Comfy.Undo")
    shows(page, own)
    assert page.problems() == []
