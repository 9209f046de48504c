"""Clips on a real server: from a folder to an adapter of a MODEL of videos, and what is shown."""

from pathlib import Path
from types import SimpleNamespace

import pytest
from comfyui.clip_files import write_clip
from comfyui.conftest import write_images
from comfyui.graphs import (
    CACHE,
    DATASET,
    TRAIN,
    cached_nodes,
    cancelled,
    changed,
    loaded_run,
    node,
    panel,
    record,
    run_folder,
    weights,
)
from comfyui.test_graph_errors import refused
from comfyui.test_graph_history import going_on
from comfyui.test_graph_model import LATENT, MODEL, hashes, model_graph, sampled
from comfyui.test_quick import NODE as QUICK
from comfyui.test_quick import prompt, refusal
from PIL import Image

from trainer_core.training.prepare.cache_manifest import read_manifest

pytestmark = pytest.mark.comfy

FRAMES, IMAGES, CAPTION = 9, "c1", "a red bar"
CLASS = "WanModel"


def clips_graph(name, folder="clips", **changes):
    """A graph that trains the clips of a folder, shows previews, and samples the adapter."""
    dataset = {"folder": f"datasets/{folder}", "frames": FRAMES}
    nodes = model_graph(name, "wan21", previews=True, dataset=dataset, preview_every=2, **changes)
    nodes[IMAGES] = node("PreviewImage", images=[TRAIN, 2])
    return nodes


@pytest.fixture(scope="module")
def folders(shared_server):
    """Two clips beside an image, and clips alone."""
    data = shared_server.data / "datasets"
    write_images(data / "mixed", ("a square",))
    for folder, name in (("mixed", "a"), ("mixed", "b"), ("clips", "a")):
        write_clip(data / folder, 64, 2 * FRAMES, 16, name)
    return data


@pytest.fixture(scope="module")
def trained(shared_server, folders):
    nodes = sampled(clips_graph("clips", "mixed"))
    nodes[LATENT] = node(
        "EmptyHunyuanLatentVideo", width=64, height=64, length=FRAMES, batch_size=1
    )
    said = len(shared_server.log.read_text(errors="replace"))
    result = shared_server.run(nodes)
    log = shared_server.log.read_text(errors="replace")[said:]
    whole = weights(run_folder(shared_server, "clips") / "clips.safetensors")
    state = panel(shared_server)
    return SimpleNamespace(nodes=nodes, result=result, state=state, log=log, weights=whole)


def moving(path):
    """How many frames of a file differ, and how long each is shown in milliseconds."""
    with Image.open(path) as image:
        frames, lengths = set(), []
        for number in range(image.n_frames):
            image.seek(number)
            frames.add(image.convert("RGB").tobytes())
            lengths.append(image.info["duration"])
    return len(frames), lengths


def test_clips_beside_images_are_trained_shown_moving_and_sampled(server, trained):
    state, folder = trained.state, run_folder(server, "clips")
    assert (state["status"], state["step"], len(hashes(trained.result))) == ("done", 4, 1)
    config = (folder / "run.yaml").read_text(encoding="utf-8")
    (manifest,) = (line.split(": ")[1] for line in config.splitlines() if "manifest:" in line)
    buckets = read_manifest(Path(manifest)).dataset.buckets
    assert sorted(each.frames for each in buckets) == [1, *[FRAMES] * 4]
    shown = [(each["step"], each["filename"]) for each in state["samples"]]
    assert shown == [(step, "0.webp") for step in (0, 2, 4)]
    for each in state["samples"]:
        frames, lengths = moving(server.data / "output" / each["subfolder"] / each["filename"])
        assert (frames, len(lengths), sum(lengths)) == (FRAMES, FRAMES, round(1000 * FRAMES / 16))
    assert len(trained.result["outputs"][IMAGES]["images"]) == FRAMES
    # The adapter generates clips in ComfyUI's own sampler.
    assert "lora key not loaded" not in trained.log
    assert len(trained.result["outputs"]["m9"]["images"]) == FRAMES


def test_a_run_of_clips_goes_on_longer_and_is_loaded(server, trained):
    assert TRAIN in cached_nodes(server.run(trained.nodes))
    assert going_on(server, trained.nodes, "clips/v0", steps=6).startswith("Queued.")
    server.run(trained.nodes)
    folder = run_folder(server, "clips")
    assert (record(folder)["status"], record(folder)["step"]) == ("done", 6)
    result = server.run(loaded_run(f"clips/{folder.name}"))
    assert len(result["outputs"]["2"]["images"]) == FRAMES


def test_a_cancelled_run_of_clips_goes_on_to_the_same_weights(server, trained, folders):
    nodes = clips_graph("clips_cut", "mixed")
    assert cancelled(server, nodes, 6, CLASS)["node_id"] == TRAIN
    folder = run_folder(server, "clips_cut")
    assert record(folder)["status"] == "cancelled"
    server.run(nodes)
    assert weights(folder / "clips_cut.safetensors") == trained.weights
    assert len(panel(server)["samples"]) == 3


def test_a_base_of_images_tells_of_clips(server, folders):
    nodes = model_graph("stills", dataset={"folder": "datasets/mixed"}, steps=1)
    said = len(server.log.read_text(errors="replace"))
    server.run(nodes)
    log = server.log.read_text(errors="replace")[said:]
    assert "2 clip(s), which bases of videos train and others leave out: a.mp4, b.mp4" in log
    alone = changed(nodes, DATASET, folder="datasets/clips")
    message = refused(server, alone, CACHE)
    assert "datasets/clips holds clips and no images: a.mp4" in message
    assert "Choose a model of videos" in message


@pytest.mark.exhaustive
def test_the_quick_node_trains_clips_and_draws_their_captions(server, folders):
    nodes = prompt(
        folder="datasets/clips",
        goal="object",
        steps=2,
        model=[MODEL, 0],
        clip=[MODEL, 1],
        vae=[MODEL, 2],
    )
    nodes[MODEL] = node("TinyModelForTests", model="ltxv", seed=0, precision="fp32")
    server.run(nodes)
    state = panel(server, QUICK)
    assert (state["status"], state["step"]) == ("done", 2)
    assert (state["samples"][0]["prompt"], state["samples"][0]["filename"]) == (CAPTION, "0.webp")
    rows = {each["setting"]: each["value"] for each in state["choices"]}
    assert rows["parts of clips"] == "1, of 25 frames"


def test_a_quick_base_of_images_refuses_clips_when_it_is_queued(server, folders):
    assert "holds clips and no images" in refusal(server, folder="datasets/clips")
