"""Datasets at the node: what the routes refuse, and what a run after an edit encodes again."""

import json
from urllib.parse import quote

import pytest
from comfyui.conftest import CAPTIONS, write_images
from comfyui.test_graph_images import from_images, kept, load

pytestmark = pytest.mark.comfy

ROUTE = "/adapter_trainer/dataset"
LOADER, JOIN = "20", "21"


@pytest.fixture(scope="module", autouse=True)
def folders(shared_server):
    data = shared_server.data / "input"
    write_images(data / "edited-captions", first=400)
    write_images(data / "joined", first=410)
    silent = write_images(data / "silent", (None, None), 128, 420)
    for name in ("bad.png", "lonely.txt"):
        (silent / name).write_text("no image")


def save(server, folder, text, token, name="0.png"):
    query = f"folder={folder}&name={name}"
    return server.post(f"{ROUTE}/save?{query}", {"text": text, "token": token})


def test_captions_come_from_any_node_that_gives_texts(server):
    nodes = from_images("joined", [LOADER, 0], [JOIN, 0], train={"steps": 1})
    nodes[LOADER] = load("joined")
    given = {"string_a": [LOADER, 1], "string_b": "in oil", "delimiter": ", "}
    nodes[JOIN] = {"class_type": "StringConcatenate", "inputs": given}
    server.run(nodes)
    texts = {path.read_text() for path in kept(server)[-1].glob("*.txt")}
    assert texts == {f"{caption}, in oil" for caption in CAPTIONS}


@pytest.mark.parametrize("chosen", ["input/silent", "demo/demo-generate"])
def test_captions_are_missing_where_a_trigger_word_does_not_suffice(server, chosen):
    """Also of images that are looked at before their folder is the chosen one."""
    for goal, word, missing in (
        *(("object", "ohwx", False), ("object", " ", True)),
        *(("person", "ohwx", False), ("style", "ohwx", True)),
    ):
        answers = {"folder": chosen, "base": "embedded", "goal": goal, "quality": "fast"}
        given = quote(json.dumps({"answers": {**answers, "trigger_word": word, "kind": "lora"}}))
        report = server.get(f"{ROUTE}/report?folder=input/silent&settings={given}")
        assert ("missing_caption" in {each["kind"] for each in report["problems"]}) == missing
        assert report["items"][0]["bucket"] == [64, 64]


def test_the_routes_keep_to_the_folders_of_datasets(server):
    demo = "demo/demo-generate"
    report = server.get(f"{ROUTE}/report?folder={demo}")
    assert (report["total"], report["editable"]) == (40, False)
    assert server.fetch(f"{ROUTE}/image?folder={demo}&name=001.png")[8:12] == b"WEBP"
    token = server.get(f"{ROUTE}/caption?folder={demo}&name=001.png")["token"]
    assert save(server, demo, "changed", token, "001.png")[0] == 409
    written = server.data / "output" / "adapter_trainer" / "pictures" / "mine"
    write_images(written)
    ours = "output/adapter_trainer/pictures/mine"
    token = server.get(f"{ROUTE}/caption?folder={ours}&name=0.png")["token"]
    assert save(server, ours, "x", token)[0] == 409
    for query in ("folder=demo/..", "folder=/etc", "folder=models", "folder=input/../models", ""):
        assert server.status(f"{ROUTE}/report?{query}") in {400, 409}
        assert server.status(f"{ROUTE}/image?{query}&name=0.png") in {400, 409}
    for name in ("../joined/0.png", "/etc/passwd", "0.txt"):
        assert server.status(f"{ROUTE}/image?folder=input/edited-captions&name={name}") == 409
    for folder, add in (("..", 0), ("a/b", 0), ("../datasets/four", 1), ("absent", 1), ("", 0)):
        assert server.post(f"{ROUTE}/begin?folder={folder}&add={add}", {})[0] == 409
    for route in ("file?drop=x&name=a.png", "finish?drop=x"):
        assert server.post(f"{ROUTE}/{route}", {})[0] == 409
    assert server.post(f"{ROUTE}/cancel?drop=x", {})[0] == 200
