"""What a stranger's prompt, dataset or run can hold: an error in three parts on its own node."""

import contextlib
import json
import shutil
import socket

import pytest
from comfyui.conftest import write_images
from comfyui.graphs import (
    ADAPTER,
    BASE,
    CACHE,
    DATASET,
    PREVIEW,
    PROMPTS,
    SAVE,
    SETTINGS,
    STEPS,
    TRAIN,
    changed,
    graph,
    run_folder,
)
from comfyui.test_graph_errors import assert_alive, refused, refused_at_once, refused_soon

pytestmark = pytest.mark.comfy

LITERALS = ["text", 5, 0.5, True, {"a": 1}, {"__value__": [1, 2]}]
SOCKETS = [
    (CACHE, "dataset"),
    (CACHE, "base"),
    (TRAIN, "base"),
    (TRAIN, "cache"),
    (TRAIN, "adapter"),
    (TRAIN, "settings"),
]


@pytest.mark.parametrize(("node", "name"), SOCKETS)
@pytest.mark.parametrize("literal", LITERALS, ids=str)
def test_a_literal_where_a_socket_belongs(server, node, name, literal):
    message = refused_soon(server, changed(graph("literal"), node, **{name: literal}), node)
    assert f"Found: {name} of " in message
    assert "ADAPTER_TRAINER_" in message


@pytest.mark.parametrize("name", ["clip", "vae", "previews"])
@pytest.mark.parametrize("literal", LITERALS, ids=str)
def test_a_literal_at_an_optional_socket(server, name, literal):
    refused_soon(server, changed(graph("literal"), CACHE, **{name: literal}), CACHE)


@pytest.mark.parametrize("literal", LITERALS, ids=str)
def test_a_literal_for_a_run_and_a_lora(server, literal):
    for inputs in ({"run": literal}, {"lora": literal}):
        save = {"name": "x", "layout": "comfyui", "overwrite": False, **inputs}
        nodes = {SAVE: {"class_type": "AdapterTrainerSave", "inputs": save}}
        refused_at_once(server, nodes, SAVE)
    convert = {
        "file": "none",
        "lora": literal,
        "layout": "comfyui",
        "family": "auto",
        "name": "x",
        "overwrite": False,
    }
    refused(server, {"1": {"class_type": "AdapterTrainerConvert", "inputs": convert}}, "1")


@pytest.mark.parametrize("literal", LITERALS, ids=str)
def test_a_literal_for_images(server, literal):
    nodes = graph("literal", previews=True)
    refused_soon(server, changed(nodes, PROMPTS, controls=literal), PROMPTS)
    inputs = {"images": literal, "texts": "a", "resolution": 64}
    sizes = json.loads(json.dumps(graph("x")[DATASET]["inputs"]))
    named = {"trigger_word", "caption_dropout", "num_repeats", "max_aspect_ratio", "upscale"}
    inputs |= {name: value for name, value in sizes.items() if name in {*named, "control_area"}}
    nodes[DATASET] = {"class_type": "AdapterTrainerDatasetImages", "inputs": inputs}
    refused_soon(server, nodes, DATASET)


@pytest.mark.parametrize("kind", ["dora", "", 5, {"kind": "lora"}, {"__value__": ["lora"]}, True])
def test_an_adapter_of_an_unknown_kind(server, kind):
    message = refused(server, changed(graph("kind"), ADAPTER, kind=kind), ADAPTER)
    assert "kind of Adapter Config" in message
    assert "lokr" in message


@pytest.mark.parametrize(
    ("node", "name", "values"),
    [
        (DATASET, "folder", [5, True, {"a": 1}, {"__value__": ["datasets/four"]}]),
        (BASE, "source", [5, True, {"a": 1}, {"__value__": ["embedded"]}]),
    ],
)
def test_a_choice_that_is_no_text(server, node, name, values):
    for value in values:
        refused_at_once(server, changed(graph("choice"), node, **{name: value}), node)


def test_a_number_that_is_none(server):
    nodes = graph("number", previews=True, behind=True)
    nodes[PREVIEW]["inputs"]["strength"] = "nan"
    refused(server, nodes, PREVIEW)


def test_settings_that_are_out_of_range_name_themselves(server):
    text = json.dumps(changed(graph("x"), SETTINGS, beta1="nan"))
    assert "beta1" in refused_at_once(server, json.loads(text), SETTINGS)


def test_half_an_emoji_is_no_text(server):
    quick = {"folder": "datasets/four", "base": "embedded", "goal": "style", "quality": "fast"}
    quick |= {"name": "", "trigger_word": "\ud83d", "kind": "auto"}
    nodes = {"1": {"class_type": "AdapterTrainerQuick", "inputs": quick}}
    assert "trigger_word" in refused_at_once(server, nodes, "1")


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


@pytest.mark.parametrize("name", ["0.png", "0.txt", "below"])
def test_a_link_inside_of_a_dataset(server, secret, name):
    folder = write_images(server.data / "datasets" / "tampered")
    named = {"folder": "datasets/tampered"}
    try:
        target = secret / name if name != "below" else secret
        with linked(folder / name, target):
            message = refused_at_once(server, graph("inner", dataset=named), DATASET)
            assert "link" in message
            assert "secret" not in message
        server.run(graph("inner", dataset=named))
    finally:
        shutil.rmtree(folder)


@pytest.mark.parametrize("part", ["control_images", "training_images"])
def test_a_link_to_a_part_of_a_paired_dataset(server, secret, part):
    folder = server.data / "datasets" / "pairs"
    for name in ("control_images", "training_images"):
        write_images(folder / name)
    try:
        with linked(folder / part, secret):
            nodes = graph("pairs", dataset={"folder": "datasets/pairs"})
            refused_at_once(server, nodes, DATASET)
    finally:
        shutil.rmtree(folder)


@pytest.fixture(scope="module")
def trained(shared_server):
    """A run with a checkpoint, for links in it."""
    nodes = graph("linked", settings={"checkpoint_every": STEPS // 2})
    shared_server.run(nodes)
    return run_folder(shared_server, "linked")


RUN_FILES = ["metrics.jsonl", "run.json", "checkpoints"]


@pytest.mark.parametrize("name", RUN_FILES)
def test_a_link_inside_of_a_run(server, trained, tmp_path, name):
    outside = tmp_path / name
    source = trained / name
    (shutil.copytree if source.is_dir() else shutil.copyfile)(source, outside)
    load = {"run": "linked/v0", "checkpoint": 0}
    nodes = {
        "1": {"class_type": "AdapterTrainerLoadRun", "inputs": load},
        "2": {
            "class_type": "AdapterTrainerSave",
            "inputs": {"run": ["1", 3], "name": "x", "layout": "comfyui", "overwrite": False},
        },
    }
    with linked(trained / name, outside):
        message = refused(server, nodes, "1")
        assert "link" in message
        assert server.status("/adapter_trainer/workflow?run=linked/v0") == 404
        longer = graph("linked", settings={"checkpoint_every": STEPS // 2}, train={"steps": 12})
        assert "link" in refused(server, longer, TRAIN)


def test_a_run_that_is_itself_a_link(server, tmp_path):
    root = server.data / "output" / "adapter_trainer"
    (tmp_path / "elsewhere").mkdir()
    with linked(root / "elsewhere", tmp_path / "elsewhere"):
        assert "link" in refused(server, graph("elsewhere"), TRAIN)
    assert not list((tmp_path / "elsewhere").iterdir())


def test_a_link_inside_of_the_cache(server, trained, tmp_path):
    entry = next((server.data / "output/adapter_trainer/cache/latents").glob("*.safetensors"))
    shutil.copyfile(entry, tmp_path / "entry")
    with linked(entry, tmp_path / "entry"):
        nodes = graph("cached", cache={"verify": True})
        assert "link" in refused(server, nodes, CACHE)


def test_a_folder_of_models_may_hold_links(server, trained, tmp_path):
    file = next(trained.glob("*.safetensors"))
    shutil.copyfile(file, tmp_path / "far.safetensors")
    loras = server.data / "models" / "loras"
    loras.mkdir(parents=True, exist_ok=True)
    convert = {
        "file": "near.safetensors",
        "layout": "kohya",
        "family": "auto",
        "name": "from_far",
        "overwrite": True,
    }
    with linked(loras / "near.safetensors", tmp_path / "far.safetensors"):
        server.run({"1": {"class_type": "AdapterTrainerConvert", "inputs": convert}})
    assert (loras / "from_far.safetensors").is_file()


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
        b'{"a":' * 900 + b"1" + b"}" * 900,
        b"\xff\xfe",
        b"",
        b"9" * 100_000,
        b'{"node_id": "1", "wish": "' + b"x" * 1_000_000 + b'"}',
    ],
    ids=["deep", "less deep", "bytes", "nothing", "number", "long"],
)
def test_a_body_that_no_client_sends(server, body):
    assert raw_post(server, "/adapter_trainer/wish", body) == 400


@pytest.mark.parametrize("name", ["%00", "a%00b/v0", "..%2f..", "%1b%5b2J", "a" * 5000, "linked"])
def test_a_run_that_no_client_asks_for(server, name):
    assert server.status(f"/adapter_trainer/workflow?run={name}") == 404
    assert_alive(server)
