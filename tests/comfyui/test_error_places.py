"""Which node tells which mistake, and when: the table that a first user can run into."""

import shutil

import numpy
import pytest
from comfyui.conftest import write_images
from comfyui.graphs import (
    ADAPTER,
    BASE,
    DATASET,
    PROMPTS,
    SETTINGS,
    TRAIN,
    changed,
    graph,
    hold,
    panel,
    release,
    wait_until_held,
)
from comfyui.test_graph_errors import refused, refused_at_once

pytestmark = pytest.mark.comfy

# What is changed, the node that has to be red, and words of its message. None of these graphs is
# begun: all of it is told when Run is pressed.
AT_ONCE = {
    "torn image": ({"dataset": {"folder": "datasets/places/torn"}}, DATASET, "0.png"),
    "not flat": (
        {"dataset": {"folder": "datasets/four", "layout": "paired"}},
        DATASET,
        "set layout to flat",
    ),
    "not a base": ({"base": {"source": "diffusion_models/odd.safetensors"}}, BASE, "no family"),
    "bad pattern": ({"adapter": {"include": "blocks.(0"}}, ADAPTER, "include"),
    "no range": ({"settings": {"sigma_min": 0.9, "sigma_max": 0.1}}, SETTINGS, "sigma_max"),
}
# Known only where the other side is: when the node runs, before anything is encoded or trained.
LATER = {
    "controls for no prompt": (PROMPTS, "prompts and 3 control images"),
    "another base": (TRAIN, "precision fp32, and this node one with precision bf16"),
    "no such checkpoint": (TRAIN, "resume_from"),
}


@pytest.fixture(scope="module")
def folders(shared_server):
    from safetensors.numpy import save_file

    root = shared_server.data / "datasets" / "places"
    write_images(root / "torn", ("a", "b"))
    (root / "torn" / "0.png").write_bytes(b"no image")
    models = shared_server.data / "models" / "diffusion_models"
    models.mkdir(parents=True, exist_ok=True)
    save_file({"a.weight": numpy.zeros((2, 2), numpy.float32)}, models / "odd.safetensors")
    yield root
    shutil.rmtree(root)


@pytest.mark.parametrize("case", AT_ONCE)
def test_a_mistake_is_told_by_its_node_when_run_is_pressed(server, folders, case):
    changes, node, words = AT_ONCE[case]
    message = refused_at_once(server, graph("places", previews=True, **changes), node)
    assert words in message
    # In the words of the graph, and without where ComfyUI lies.
    assert str(server.data) not in message
    for section in ("dataset.", "adapter.", "training.", "base.", "output."):
        assert f" {section}" not in f" {message}"


def later(case):
    nodes = graph("places", previews=case == "controls for no prompt", train={"steps": 1})
    if case == "controls for no prompt":
        image = {"width": 32, "height": 32, "batch_size": 3, "color": 0}
        nodes["20"] = {"class_type": "EmptyImage", "inputs": image}
        nodes[PROMPTS]["inputs"]["controls"] = ["20", 0]
    elif case == "another base":
        nodes["20"] = {"class_type": "AdapterTrainerBase", "inputs": {**nodes[BASE]["inputs"]}}
        nodes["20"]["inputs"]["precision"] = "bf16"
        nodes[TRAIN]["inputs"]["base"] = ["20", 0]
    else:
        nodes[TRAIN]["inputs"]["resume_from"] = "places/v0/000009"
    return nodes


@pytest.mark.parametrize("case", LATER)
def test_what_only_two_nodes_know_is_told_by_the_one_that_needs_both(server, folders, case):
    node, words = LATER[case]
    message = refused(server, nodes := later(case), node)
    assert words in message
    assert str(server.data) not in message
    # A page that is opened now says it too, as long as the graph is the same.
    for seed, told in ((0, node == TRAIN), (7, False)):
        nodes[TRAIN]["inputs"]["seed"] = seed
        shown = server.post(f"/adapter_trainer/state?node_id={TRAIN}", {"prompt": nodes})[1] or {}
        assert ("refused" in shown) == told


def test_nothing_is_refused_early_while_another_prompt_may_still_write_it(server, folders):
    """Whoever queues a graph that fills a folder, and one that trains on it, is right."""
    hold(server, at=1)
    server.queue(graph("first", train={"steps": 1, "seed": 5}))
    wait_until_held(server)
    late = graph("late", dataset={"folder": "datasets/places/late"}, train={"steps": 1})
    try:
        late = server.queue(late)
        write_images(folders / "late")
    finally:
        release(server)
    assert server.failure(server.result(late)) == {}


def test_a_clean_first_run_warns_of_nothing(server):
    nodes = graph(
        "clean",
        previews=True,
        settings={"preview_every": 4},
        adapter={"rank": 16, "targets": "all_linear"},
        train={"learning_rate": 0.01},
    )
    server.run(nodes)
    assert panel(server)["warnings"] == []
    # What is found while the images are encoded is told where they are trained, by its inputs.
    copy = shutil.copytree(server.data / "datasets" / "four", server.data / "datasets" / "warned")
    (copy / "layers.psd").write_bytes(b"")
    nodes[DATASET]["inputs"] |= {"folder": "datasets/warned", "shuffle_tags": 4}
    server.run(changed(nodes, TRAIN, steps=1, name="unclean"))
    warnings = " ".join(panel(server)["warnings"])
    assert "layers.psd" in warnings
    assert "shuffle_tags of Dataset From Folder moves no tag" in warnings
