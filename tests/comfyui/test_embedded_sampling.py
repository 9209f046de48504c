"""The embedded base in ComfyUI's own KSampler, in a real server, before and after training."""

from __future__ import annotations

import io
import json
from urllib.parse import urlencode

import numpy
import pytest
from comfyui.server import ROOT
from PIL import Image

from trainer_core.demo.checker import read_image
from trainer_core.demo.exam import concept_questions, mark

pytestmark = pytest.mark.comfy

MODEL, SIZE = ["model", 0], 64
QUESTIONS, EACH, STEPS = 8, 4, 200
TRAINING = {
    *("AdapterTrainerDatasetFolder", "AdapterTrainerBase", "AdapterTrainerCache"),
    *("AdapterTrainerAdapter", "AdapterTrainerSettings", "AdapterTrainerTrain"),
}


def node(kind, **inputs):
    return {"class_type": kind, "inputs": inputs}


def beginning(batch):
    """What every KSampler shares."""
    empty = {"width": SIZE, "height": SIZE, "batch_size": batch}
    return {
        "model": node("AdapterTrainerEmbeddedModel"),
        "empty": node("EmptyLatentImage", **empty),
    }


def ending(name, text, model, steps=20, **inputs):
    """From a prompt to its images, as a user puts it together; one text feeds both inputs."""
    sampling = {"sampler_name": "euler", "scheduler": "simple", "cfg": 4.0, "denoise": 1.0}
    return {
        f"{name} text": node("AdapterTrainerEmbeddedText", text=text, **inputs),
        f"{name} sampler": node(
            "KSampler",
            model=model,
            positive=[f"{name} text", 0],
            negative=[f"{name} text", 1],
            latent_image=["empty", 0],
            seed=3,
            steps=steps,
            **sampling,
        ),
        f"{name} decode": node("VAEDecode", samples=[f"{name} sampler", 0], vae=["model", 1]),
        name: node("PreviewImage", images=[f"{name} decode", 0]),
    }


def drawn(server, result, name):
    """The images of a preview, uint8 `[H, W, 3]`."""
    found = []
    for each in result["outputs"][name]["images"]:
        content = server.fetch(f"/view?{urlencode(each)}")
        found.append(numpy.asarray(Image.open(io.BytesIO(content)).convert("RGB")))
    return found


def training(name):
    """The nodes of the shipped graph that train, by their ids, and the id of Train Adapter."""
    path = ROOT / "tests" / "workflows" / "51_advanced_first_adapter.json"
    nodes = json.loads(path.read_text(encoding="utf-8"))
    kept = {key: value for key, value in nodes.items() if value["class_type"] in TRAINING}
    by_kind = {value["class_type"]: key for key, value in kept.items()}
    kept[by_kind["AdapterTrainerCache"]]["inputs"].pop("previews", None)
    kept[by_kind["AdapterTrainerSettings"]]["inputs"] |= {"preview_every": 0}
    train = by_kind["AdapterTrainerTrain"]
    kept[train]["inputs"] |= {"name": name, "steps": STEPS}
    return kept, train


def test_a_ksampler_generates_and_edits_with_nothing_downloaded(server):
    """The base's own words, also with a control image of another size; 8 steps are enough."""
    control = {
        "control": node("LoadImage", image="square.png"),
        "large": node(
            "ImageScale",
            image=["control", 0],
            upscale_method="lanczos",
            width=96,
            height=96,
            crop="disabled",
        ),
    }
    square = numpy.full((SIZE, SIZE, 3), (40, 75, 220), numpy.uint8)
    square[20:44, 20:44] = (215, 35, 35)
    Image.fromarray(square).save(server.data / "input" / "square.png")
    result = server.run(
        beginning(1)
        | ending("new", "a yellow circle on a green background", MODEL, steps=8)
        | control
        | ending("edit", "make the shape green", MODEL, steps=8, controls=["large", 0])
    )
    (new,), (edit,) = drawn(server, result, "new"), drawn(server, result, "edit")
    seen = read_image(new)
    assert (seen.shape, seen.shape_color, seen.background_color) == ("circle", "yellow", "green")
    seen = read_image(edit)
    assert (seen.shape, seen.shape_color, seen.background_color) == ("square", "green", "blue")


@pytest.mark.exhaustive
def test_what_was_trained_in_a_graph_is_drawn_by_its_ksampler(server):
    """Train Adapter, Load LoRA Model, KSampler, VAE Decode; beside it the base alone."""
    nodes, train = training("sampled")
    lora = {"strength_model": 1.0, "bypass": False}
    nodes["lora"] = node("LoraModelLoader", model=MODEL, lora=[train, 0], **lora)
    questions = concept_questions(QUESTIONS, 7)
    nodes |= beginning(EACH)
    for index, question in enumerate(questions):
        nodes |= ending(f"after {index}", question.text, ["lora", 0])
        nodes |= ending(f"before {index}", question.text, MODEL)
    result = server.run(nodes, timeout=600)
    asked = [question for question in questions for _ in range(EACH)]
    shares = {
        side: mark(
            asked,
            [im for index in range(QUESTIONS) for im in drawn(server, result, f"{side} {index}")],
        )
        for side in ("after", "before")
    }
    assert shares["after"] >= 0.8, shares
    assert shares["before"] <= 0.2, shares
