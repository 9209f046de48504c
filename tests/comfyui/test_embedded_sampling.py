"""The embedded base in ComfyUI's own KSampler, in a real server."""

import io
from urllib.parse import urlencode

import numpy
import pytest
from comfyui.graphs import node
from PIL import Image

from trainer_core.demo.checker import read_image

pytestmark = pytest.mark.comfy

MODEL, SIZE = ["model", 0], 64


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
