"""Workflows for Qwen-Image and Qwen-Image-Edit at full size."""

from __future__ import annotations

from .full_size import (
    INSTRUCTION,
    PROMPT,
    Choice,
    drawing_row,
    drawn,
    model,
    training_half,
    with_adapter,
)
from .graph import Node, Workflow

_TEXT = "qwen_2.5_vl_7b_fp8_scaled.safetensors"
_VAE = "qwen_image_vae.safetensors"
_GENERATE = Choice(
    "Qwen-Image",
    "qwen_image_fp8_e4m3fn.safetensors",
    "lokr",
    4.0,
    "my_qwen_image",
    "three",
    38,
)
_EDIT = Choice(
    "Qwen-Image-Edit",
    "qwen_image_edit_2509_fp8_e4m3fn.safetensors",
    "lokr",
    4.0,
    "my_qwen_edit",
    "three",
    38,
    edits=True,
    several=" Several control images of one: *cat_0.png*, *cat_1.png*.",
)


def qwen_image_lokr() -> Workflow:
    """LoKr for Qwen-Image."""
    flow = Workflow("09_advanced_qwen_image", "A LoKr for Qwen-Image, straight into the sampler")
    trained = training_half(flow, _GENERATE, _clip(flow), _VAE)
    lora = with_adapter(flow, trained.model)
    shifted = flow.node("ModelSamplingAuraFlow", {"model": lora["model"], "shift": 3.1})
    positive = flow.node("CLIPTextEncode", {"clip": trained.clip, "text": PROMPT}, title="Prompt")
    negative = flow.node(
        "CLIPTextEncode", {"clip": trained.clip, "text": ""}, title="Negative prompt"
    )
    latent = flow.node("EmptySD3LatentImage", {"width": 1024, "height": 1024})
    sides = positive["CONDITIONING"], negative["CONDITIONING"]
    last = drawn(flow, trained, shifted["MODEL"], *sides, latent["LATENT"], 4.0, "qwen_image")
    drawing_row(flow, [[lora, shifted, latent], [positive, negative], *last], latent)
    return flow


def qwen_image_edit() -> Workflow:
    """LoKr for Qwen-Image-Edit 2509, with control images."""
    flow = Workflow("10_advanced_qwen_image_edit", "A LoKr for Qwen-Image-Edit from pairs of images")
    trained = training_half(flow, _EDIT, _clip(flow), _VAE)
    image = trained.image
    assert image is not None
    lora = with_adapter(flow, trained.model)
    shifted = flow.node("ModelSamplingAuraFlow", {"model": lora["model"], "shift": 3.0})
    norm = flow.node("CFGNorm", {"model": shifted["MODEL"], "strength": 1.0})
    shared = {"clip": trained.clip, "vae": trained.vae, "image1": image}
    positive = flow.node(
        "TextEncodeQwenImageEditPlus", {**shared, "prompt": INSTRUCTION}, title="Instruction"
    )
    negative = flow.node(
        "TextEncodeQwenImageEditPlus", {**shared, "prompt": ""}, title="Negative instruction"
    )
    latent = flow.node("VAEEncode", {"pixels": image, "vae": trained.vae})
    sides = positive["CONDITIONING"], negative["CONDITIONING"]
    model_out, place = norm["patched_model"], latent["LATENT"]
    (sampling, saving) = drawn(flow, trained, model_out, *sides, place, 4.0, "qwen_image_edit")
    columns = [[lora, shifted, norm], [positive, negative], [latent, *sampling], saving]
    drawing_row(flow, columns, None)
    return flow


def _clip(flow: Workflow) -> Node:
    values = {"clip_name": _TEXT, "type": "qwen_image"}
    return flow.node("CLIPLoader", values, models=[model(_TEXT)])
