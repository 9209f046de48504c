"""What a stranger's prompt, dataset or run can hold: an error in three parts on its own node."""

import contextlib
import json
import shutil
import socket

import pytest
from comfyui.conftest import write_images
from comfyui.graphs import (
    BASE,
    CACHE,
    DATASET,
    SAVE,
    STEPS,
    TRAIN,
    changed,
    graph,
    loaded_run,
    run_folder,
)
from comfyui.test_graph_errors import convert, refused, refused_at_once, refused_soon

pytestmark = pytest.mark.comfy

LITERALS = ("text", 5, 0.5, True, {"a": 1}, {"__value__": [1, 2]})
SOCKETS = (
    *((CACHE, "dataset"), (CACHE, "base"), (TRAIN, "base")),
    *((TRAIN, "cache"), (TRAIN, "adapter"), (TRAIN, "settings")),
)


@pytest.mark.parametrize("literal", LITERALS, ids=str)
def test_a_literal_where_a_socket_belongs(server, literal):
    node, name = SOCKETS[LITERALS.index(literal)]
    message = refused_soon(server, changed(graph("literal"), node, **{name: literal}), node)
    assert f"Found: {name} of " in message
    assert "ADAPTER_TRAINER_" in message
    for name in ("clip", "vae", "previews"):
        refused_soon(server, changed(graph("literal"), CACHE, **{name: literal}), CACHE)
    save = {"name": "x", "layout": "comfyui", "overwrite": False}
    for inputs in ({"run": literal}, {"lora": literal}):
        nodes = {SAVE: {"class_type": "AdapterTrainerSave", "inputs": save | inputs}}
        refused_at_once(server, nodes, SAVE)
    refused(server, convert("none", lora=literal), "1")


@pytest.mark.parametrize(("node", "name"), [(DATASET, "folder"), (BASE, "source")])
def test_a_choice_that_is_no_text(server, node, name):
    for value in (5, True, {"a": 1}, {"__value__": ["datasets/four"]}):
        refused_at_once(server, changed(graph("choice"), node, **{name: value}), node)


@contextlib.contextmanager
def linked(path, target):
    """A link for the time of a block, in place of what was there."""
    kept = path.with_name(f".kept-{path.name}")
    if path.exists():
        path.rename(kept)
    path.symlink_to(target)
    try:
        yield
    finally:
        path.unlink()
        if kept.exists():
            kept.rename(path)


@pytest.fixture
def secret(tmp_path):
    return write_images(tmp_path / "secret", size=64, first=50)


def test_a_link_inside_of_a_dataset(server, secret):
    folder = write_images(server.data / "datasets" / "tampered")
    nodes = graph("inner", dataset={"folder": "datasets/tampered"}, train={"steps": 1})
    try:
        for name, target in (("0.png", secret / "0.png"), ("below", secret)):
            with linked(folder / name, target):
                message = refused_at_once(server, nodes, DATASET)
                assert "link" in message
                assert "secret" not in message
        server.run(nodes)
    finally:
        shutil.rmtree(folder)


@pytest.fixture(scope="module")
def trained(shared_server):
    """A run with a checkpoint, for links in it."""
    nodes = graph("linked", settings={"checkpoint_every": STEPS // 2})
    shared_server.run(nodes)
    return run_folder(shared_server, "linked")


@pytest.mark.parametrize("name", ["run.json", "checkpoints"])
def test_a_link_inside_of_a_run(server, trained, tmp_path, name):
    outside = tmp_path / name
    source = trained / name
    (shutil.copytree if source.is_dir() else shutil.copyfile)(source, outside)
    with linked(trained / name, outside):
        message = refused(server, loaded_run("linked/v0"), "1")
        assert "link" in message
        assert server.status("/adapter_trainer/workflow?run=linked/v0") == 404
        longer = graph("linked", settings={"checkpoint_every": STEPS // 2}, train={"steps": 12})
        assert "link" in refused(server, longer, TRAIN)


def raw_post(server, path, body):
    """Post bytes that no client would make."""
    head = (
        f"POST {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n"
        f"Content-Length: {len(body)}\r\nConnection: close\r\n\r\n"
    )
    with socket.create_connection(("127.0.0.1", server.port), timeout=60) as connection:
        connection.sendall(head.encode() + body)
        answer = b""
        while chunk := connection.recv(65536):
            answer += chunk
    return int(answer.split(b" ", 2)[1])


@pytest.mark.parametrize(
    "body",
    [
        b"[" * 100_000 + b"]" * 100_000,
        b"\xff\xfe",
        b"",
        b'{"node_id": "1", "wish": "' + b"x" * 1_000_000 + b'"}',
    ],
    ids=["deep", "bytes", "nothing", "long"],
)
def test_a_body_that_no_client_sends(server, body):
    assert raw_post(server, "/adapter_trainer/wish", body) == 400
    # A graph may be as long as that, and means no run.
    assert raw_post(server, "/adapter_trainer/state?node_id=no", body) == 404


@pytest.mark.parametrize(
    ("query", "node"),
    [
        ("", {}),
        ("node_id=1&name=../../x&run=../x/v0", {"inputs": {"folder": ["2", 0], "name": 5}}),
        (
            "node_id=1",
            {"class_type": ["x"], "inputs": {"folder": "..", "name": "\0", "a": ["1", 0]}},
        ),
        ("node_id=1&name=" + "x" * 5000, []),
    ],
)
def test_a_graph_that_no_page_sends_means_no_run(server, query, node):
    body = json.dumps({"prompt": {"1": node}}).encode()
    assert raw_post(server, f"/adapter_trainer/state?{query}", body) == 404
    wish = {"wish": "continue", "node_id": "1", "run": "../../etc", "prompt": {"1": node}}
    assert raw_post(server, "/adapter_trainer/wish", json.dumps(wish).encode()) == 409
    wish = {"wish": "continue", "node_id": "1", "steps": -3}
    assert raw_post(server, "/adapter_trainer/wish", json.dumps(wish).encode()) == 409


def booleans(schema):
    """The ids of a node's inputs for true or false, each with the choice that shows it."""
    found = {}
    for group in schema["input"].values():
        for name, (kind, *facts) in group.items() if isinstance(group, dict) else ():
            if kind == "BOOLEAN":
                found[name] = {}
            for option in facts[0]["options"] if kind == "COMFY_DYNAMICCOMBO_V3" else ():
                inner = booleans({"input": option["inputs"]})
                found |= {f"{name}.{each}": {name: option["key"]} for each in inner}
    return found


def test_texts_for_true_and_false_are_read_or_refused(server):
    asked = 0
    for kind, schema in server.get("/object_info").items():
        for name, chosen in booleans(schema).items() if "AdapterTrainer" in kind else ():
            nodes = {"1": {"class_type": kind, "inputs": {"file": "none", **chosen, name: "maybe"}}}
            nodes["2"] = {"class_type": "PreviewAny", "inputs": {"source": ["1", 0]}}
            status, answer = server.post("/prompt", {"prompt": nodes})
            assert status == 400
            errors = answer["node_errors"]["1"]["errors"]
            told = [each["details"] for each in errors if "true or false" in each["details"]]
            assert told, (kind, name, errors)
            assert all(name in each and "maybe" in each for each in told)
            asked += 1
    assert asked > 20
    values = {"folder": "datasets/four", "upscale": " False", "subfolders": "true"}
    nodes = graph("texts_of_truth", dataset=values, train={"steps": 1, "resume": "true"})
    ran = server.run(nodes)["prompt"][2]
    given = ran[DATASET]["inputs"]
    found = given["upscale"], given["subfolders"], ran[TRAIN]["inputs"]["resume"]
    assert found == (False, True, True)
