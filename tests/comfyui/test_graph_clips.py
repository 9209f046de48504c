"""Clips on a real server: from a folder to an adapter of a MODEL of videos, and what is shown."""

import io
import urllib.parse
from pathlib import Path
from types import SimpleNamespace

import numpy
import pytest
import yaml
from comfyui.clip_files import write_clip
from comfyui.conftest import write_images
from comfyui.graphs import (
    BASE,
    CACHE,
    DATASET,
    PROMPTS,
    TRAIN,
    changed,
    node,
    panel,
    run_folder,
    weights,
)
from comfyui.test_graph_errors import refused
from comfyui.test_graph_model import LATENT, MODEL, SAMPLER, TEXT, hashes, model_graph, sampled
from comfyui.test_quick import refusal
from PIL import Image, ImageSequence

from trainer_core.data.clips import clip_facts, read_frames
from trainer_core.inference.preview_files import save_preview
from trainer_core.training.prepare.cache_manifest import read_manifest
from trainer_core.types import ClipPart

pytestmark = pytest.mark.comfy

FRAMES, IMAGES, CAPTION = 9, "c1", "a red bar"


def clips_graph(name, folder="clips", **changes):
    """A graph that trains the clips of a folder, shows previews, and samples the adapter."""
    dataset = {"folder": f"datasets/{folder}", "frames": FRAMES}
    nodes = model_graph(name, "wan21", previews=True, dataset=dataset, preview_every=2, **changes)
    nodes[IMAGES] = node("PreviewImage", images=[TRAIN, 2])
    return nodes


@pytest.fixture(scope="module")
def folders(shared_server):
    """Two clips with masks beside an image, and clips alone."""
    data = shared_server.data / "datasets"
    write_images(data / "mixed", ("a square",))
    for folder, name in (("mixed", "a"), ("mixed", "b"), ("clips", "a")):
        write_clip(data / folder, 64, 2 * FRAMES, 16, name)
    # A mask that moves and a still one.
    write_clip(data / "mixed", 64, 2 * FRAMES, 16, "a_mask")
    (data / "mixed" / "a_mask.txt").unlink()
    Image.linear_gradient("L").resize((64, 64)).save(data / "mixed" / "b_mask.png")
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


def prompts_of(trained):
    return trained.nodes[PROMPTS]["inputs"]


def images_of(server, shown):
    """Pixels of what a node shows."""
    places = (f"/view?{urllib.parse.urlencode(each)}" for each in shown["images"])
    contents = (io.BytesIO(server.fetch(place)) for place in places)
    return [numpy.asarray(Image.open(content).convert("RGB"), int) for content in contents]


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
    # Of a file whose name does not say whether it is one of two experts.
    assert "Trained at all levels of noise" in trained.log
    # The adapter generates clips in ComfyUI's own sampler.
    assert "lora key not loaded" not in trained.log
    assert len(trained.result["outputs"]["m9"]["images"]) == FRAMES


def test_clips_are_generated_by_hand_and_compared_by_their_middle_frame(server, trained):
    frames = 5
    drawn = {"base": [BASE, 0], "previews": ["c2", 0], "clip": [MODEL, 1], "vae": [MODEL, 2]}
    compared = {"run": [TRAIN, 3], "checkpoints": "all", "strengths": "1"}
    nodes = {
        **trained.nodes,
        "c2": node("AdapterTrainerPreviewPrompts", **{**prompts_of(trained), "frames": frames}),
        "c3": node("AdapterTrainerPreview", **drawn, lora=[TRAIN, 0], strength=1.0),
        "c4": node("PreviewImage", images=["c3", 0]),
        "c5": node("AdapterTrainerCompare", **drawn, **compared),
        "c6": node("PreviewImage", images=["c5", 1]),
        "c7": node("AdapterTrainerPreview", **drawn, strength=1.0),
        "c8": node("PreviewImage", images=["c7", 0]),
    }
    shown = server.run(nodes)["outputs"]
    by_hand, base, grid = (images_of(server, shown[each]) for each in ("c4", "c8", "c6"))
    assert (len(by_hand), len(base)) == (frames, frames)
    # The run may have been made longer, and has another checkpoint then.
    for cell, clip in ((grid[0], base), (grid[-1], by_hand)):
        # One of the nodes rounds and the other cuts.
        fits = [numpy.abs(cell - frame).max() <= 1 for frame in clip]
        assert fits == [number == frames // 2 for number in range(frames)]
    assert not any(numpy.array_equal(*pair) for pair in zip(base, by_hand, strict=True))


def test_a_base_of_images_tells_of_clips(server, folders):
    nodes = model_graph("stills", dataset={"folder": "datasets/mixed"}, steps=1)
    said = len(server.log.read_text(errors="replace"))
    server.run(nodes)
    log = server.log.read_text(errors="replace")[said:]
    assert "3 clip(s), which bases of videos train and others leave out: a.mp4, a_mask.mp4" in log
    alone = changed(nodes, DATASET, folder="datasets/clips")
    message = refused(server, alone, CACHE)
    assert "datasets/clips holds clips and no images: a.mp4" in message
    assert "Choose a model of videos" in message


def test_a_quick_base_of_images_refuses_clips_when_it_is_queued(server, folders):
    assert "holds clips and no images" in refusal(server, folder="datasets/clips")


def videos(source, texts, **changes):
    given = {"videos": [source, 0], "texts": texts, "resolution": 64, "frames": FRAMES, **changes}
    return node("AdapterTrainerDatasetVideos", **given)


def test_videos_of_other_nodes_are_trained_at_their_rate(server, folders):
    files = server.data / "input" / "videos"
    for name in ("a", "b"):
        write_clip(files, 64, 2 * FRAMES, 16, name, caption=f"clip {name}")
    many, trim = ("list", "trimmed", "made"), {"start_time": 0.25, "duration": 0.6}
    nodes = clips_graph("of_videos", steps=1)
    nodes |= {
        "v1": node("LoadVideoTextDataSetFromFolder", folder="videos"),
        "v2": node("LoadVideo", file="videos/a.mp4"),
        "v3": node("Video Slice", video=["v2", 0], strict_duration=False, **trim),
        "v4": node("EmptyImage", width=64, height=64, batch_size=FRAMES + 3, color=0xC02020),
        "v5": node("CreateVideo", images=["v4", 0], fps=16.0),
        "list": videos("v1", ["v1", 1]),
        "trimmed": videos("v3", ["v6", 0]),
        "made": videos("v5", ["v6", 0]),
        "v6": node("PrimitiveString", value="a red bar"),
        DATASET: node(
            "AdapterTrainerDatasetCombine",
            **{f"datasets.dataset{number}": [each, 0] for number, each in enumerate(many)},
        ),
    }
    server.run(nodes)
    assert panel(server)["status"] == "done"
    folder = run_folder(server, "of_videos")
    config = yaml.safe_load((folder / "run.yaml").read_text(encoding="utf-8"))
    dataset = read_manifest(Path(config["cache"]["manifest"])).dataset
    assert [each.frames for each in dataset.buckets] == [FRAMES] * 6
    # Whole files are copied, and what was cut begins where it was cut.
    whole, cut, made = (
        Path(each["path"]) for each in [config["dataset"], *config["dataset"]["folders"]]
    )
    assert (whole / "00000.mp4").read_bytes() == (files / "a.mp4").read_bytes()
    (wanted,) = read_frames(files / "a.mp4", ClipPart(0.25, 1, 16.0))
    (found,) = read_frames(cut / "00000.mp4", ClipPart(0.0, 1, 16.0))
    assert numpy.abs(numpy.asarray(wanted, int) - numpy.asarray(found, int)).mean() < 6
    assert clip_facts(made / "00000.mp4").frames(16.0) == FRAMES + 3
    nodes = {**nodes, DATASET: videos("v2", ["v1", 1])}
    assert "1 clips and 2 texts" in refused(server, nodes, DATASET)


@pytest.mark.exhaustive
def test_a_model_of_clips_that_begin_with_an_image_asks_for_what_sees_it(server, folders):
    nodes = clips_graph("begun", steps=2)
    nodes[MODEL]["inputs"]["model"] = "wan21_i2v"
    message = refused(server, nodes, CACHE)
    assert "nothing at the CLIP_VISION input" in message
    assert "Connect Load CLIP Vision to clip_vision of Base From Model" in message
    nodes[BASE]["inputs"]["clip_vision"] = [MODEL, 3]
    said = len(server.log.read_text(errors="replace"))
    result = server.run(nodes)
    assert len(hashes(result)) == 1
    # Without an image of their own previews begin as the first clip does.
    log = server.log.read_text(errors="replace")[said:]
    assert "previews begin with the first frame of a.mp4" in log
    assert [each["step"] for each in panel(server)["samples"]] == [0, 2]
    by_clip = images_of(server, result["outputs"][IMAGES])
    nodes["c9"] = node("EmptyImage", width=64, height=64, batch_size=1, color=255)
    nodes[PROMPTS]["inputs"]["controls"] = ["c9", 0]
    nodes = changed(nodes, TRAIN, name="begun_by_image")
    by_image = images_of(server, server.run(nodes)["outputs"][IMAGES])
    assert len(by_clip) == len(by_image) == FRAMES
    assert not numpy.array_equal(by_clip[0], by_image[0])
    message = refused(server, changed(nodes, DATASET, start_frame=0.5), CACHE)
    assert "start_frame of Dataset From Folder is 0.5, and a base that always begins" in message


STEERED = {"wan21_vace": "WanVaceToVideo", "wan21_fun_control": "WanFunControlToVideo"}


def write_control(path, seed):
    """A control clip whose pixels core's Load Image reads as they are."""
    draw = numpy.random.default_rng(seed)
    shape = (FRAMES + 3, 4, 4, 3)
    images = [Image.fromarray(each).resize((64, 64)) for each in draw.integers(0, 256, shape, "u1")]
    path.parent.mkdir(parents=True, exist_ok=True)
    images[0].save(path, save_all=True, append_images=images[1:], duration=62, lossless=True)


@pytest.mark.exhaustive
@pytest.mark.parametrize("model", STEERED)
def test_a_steered_clip_is_previewed_as_core_samples_it(server, folders, model):
    write_clip(server.data / "datasets" / model, 64, FRAMES + 3, 16, "a")
    controls = [
        server.data / place for place in (f"datasets/{model}/a_control.webp", "input/c.webp")
    ]
    for path in controls:
        write_control(path, len(model))
    nodes = clips_graph(f"steered_{model}", model)
    nodes[MODEL]["inputs"]["model"] = model
    shown = {"width": 64, "height": 64, "frames": FRAMES, "seed": 4}
    nodes = changed(nodes, PROMPTS, controls_from=f"datasets/{model}", **shown)
    nodes = sampled(changed(nodes, TRAIN, learning_rate=0.1))
    sizes = {"width": 64, "height": 64, "length": FRAMES, "batch_size": 1}
    nodes["c2"] = node("LoadImage", image="c.webp")
    nodes["c3"] = node(
        STEERED[model],
        positive=[TEXT, 0],
        negative=[TEXT, 0],
        vae=[MODEL, 2],
        control_video=["c2", 0],
        **sizes,
        **({"strength": 1.0} if "vace" in model else {}),
    )
    prompted = prompts_of(SimpleNamespace(nodes=nodes))
    steps = {"steps": prompted["steps"], "seed": prompted["seed"], "cfg": prompted["guidance"]}
    nodes[TEXT]["inputs"]["text"] = prompted["prompts"]
    given = {"positive": ["c3", 0], "negative": ["c3", 1], "latent_image": ["c3", 2], **steps}
    nodes[SAMPLER]["inputs"] |= given
    nodes["c4"] = {**nodes[SAMPLER], "inputs": {**nodes[SAMPLER]["inputs"], "model": [MODEL, 0]}}
    nodes["c5"] = node("VAEDecode", samples=["c4", 0], vae=[MODEL, 2])
    nodes["c6"] = node("PreviewImage", images=["c5", 0])
    drawn = {"base": [BASE, 0], "previews": [PROMPTS, 0], "clip": [MODEL, 1], "vae": [MODEL, 2]}
    nodes["c7"] = node("AdapterTrainerPreview", **drawn, lora=[TRAIN, 0], strength=1.0)
    nodes["c8"] = node("PreviewImage", images=["c7", 0])
    outputs = server.run(nodes)["outputs"]
    by_run, by_hand, by_core, base = (
        numpy.stack(images_of(server, outputs[each])) for each in (IMAGES, "c8", "m9", "c6")
    )
    # Both round what is the same to a hundred-thousandth.
    assert numpy.abs(by_hand - by_core).max() <= 1
    # The run's own file is compressed, as core's frames are here.
    path = server.data / "as_a_preview.webp"
    save_preview([Image.fromarray(each.astype("u1")) for each in by_core], path, 16)
    with Image.open(path) as file:
        frames = [numpy.asarray(each.convert("RGB"), int) for each in ImageSequence.Iterator(file)]
    assert len(by_run) == len(frames) == FRAMES
    far, near = (numpy.abs(each - numpy.stack(frames)).mean() for each in (base, by_run))
    assert 4 * near < far
