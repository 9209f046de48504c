"""Workflows for Qwen-Image and Qwen-Image-Edit at full size."""

from __future__ import annotations

from .full_size import Choice, Trained, drawing_row, model, training_half, with_adapter
from .graph import Node, Output, Workflow

_TEXT = "qwen_2.5_vl_7b_fp8_scaled.safetensors"
_VAE = "qwen_image_vae.safetensors"


def qwen_image_lokr() -> Workflow:
    """LoKr for Qwen-Image."""
    flow = Workflow("qwen_image_lokr", "A LoKr for Qwen-Image, straight into the sampler")
    choice = Choice(
        base="qwen_image_fp8_e4m3fn.safetensors",
        folder="datasets/my_pictures",
        adapter={"kind": "lokr"},
        previews={
            "prompts": "a portrait of a woman in a garden\na small house by a lake",
            "guidance": 4.0,
        },
        run={"name": "my_qwen_image"},
    )
    about = flow.note(
        """
## Train Qwen-Image on your pictures

1. Put 10 to 50 pictures into *datasets/my_pictures* below ComfyUI's folder, each with a text file
   of the same name that holds its caption. Choose that folder in **Dataset From Folder**.
2. Choose the three files below and the same diffusion model in **Load Training Base**. Plain
   bf16, fp16 and fp8_e4m3fn files and fp8_scaled ones can be read.
3. Set *name* and *steps* in **Train Adapter** and press **Run**.

A step holds the whole base in bf16, about 38 GiB: choose a graphics card with more than that.
""",
        300,
    )
    trained = training_half(flow, choice, about, _clip(flow), _VAE)
    lora = with_adapter(flow, trained.model)
    shifted = flow.node("ModelSamplingAuraFlow", {"model": lora["model"], "shift": 3.1})
    positive = flow.node(
        "CLIPTextEncode",
        {"clip": trained.clip, "text": "a portrait of a woman in a garden"},
        title="Prompt",
    )
    negative = flow.node(
        "CLIPTextEncode", {"clip": trained.clip, "text": ""}, title="Negative prompt"
    )
    latent = flow.node("EmptySD3LatentImage", {"width": 1024, "height": 1024})
    sampler, decoded, saved = _drawn(
        flow,
        trained,
        shifted["MODEL"],
        positive["CONDITIONING"],
        negative["CONDITIONING"],
        latent["LATENT"],
        "adapter_trainer/qwen_image",
    )
    drawing_row(
        flow, [[lora, shifted, latent], [positive, negative], [sampler, decoded], [saved]], latent
    )
    return flow


def qwen_image_edit() -> Workflow:
    """LoKr for Qwen-Image-Edit 2509, with control pictures."""
    flow = Workflow("qwen_image_edit", "A LoKr for Qwen-Image-Edit from pairs of pictures")
    choice = Choice(
        base="qwen_image_edit_2509_fp8_e4m3fn.safetensors",
        folder="datasets/my_pairs",
        adapter={"kind": "lokr"},
        previews={"prompts": "turn the picture into a watercolour", "guidance": 4.0, "control": ""},
        run={"name": "my_qwen_edit"},
        dataset={"layout": "paired"},
    )
    about = flow.note(
        """
## Teach Qwen-Image-Edit an edit

1. In *datasets/my_pairs* below ComfyUI's folder make *control_images* (before) and
   *training_images* (after), with the same file names, and in *training_images* a text file for
   each picture with the instruction. Several control pictures of one: *cat_0.png*, *cat_1.png*.
2. Choose the three files below and the same diffusion model in **Load Training Base**.
3. Choose a picture to edit: it is used for the previews and at the end.
4. Set *name* and *steps* in **Train Adapter** and press **Run**.

A step holds the whole base in bf16, about 38 GiB: choose a graphics card with more than that.
""",
        310,
    )
    trained = training_half(flow, choice, about, _clip(flow), _VAE)
    picture = trained.picture
    assert picture is not None
    lora = with_adapter(flow, trained.model)
    shifted = flow.node("ModelSamplingAuraFlow", {"model": lora["model"], "shift": 3.0})
    norm = flow.node("CFGNorm", {"model": shifted["MODEL"], "strength": 1.0})
    shared = {"clip": trained.clip, "vae": trained.vae, "image1": picture}
    positive = flow.node(
        "TextEncodeQwenImageEditPlus",
        {**shared, "prompt": "turn the picture into a watercolour"},
        title="Instruction",
    )
    negative = flow.node(
        "TextEncodeQwenImageEditPlus", {**shared, "prompt": ""}, title="Negative instruction"
    )
    latent = flow.node("VAEEncode", {"pixels": picture, "vae": trained.vae})
    sampler, decoded, saved = _drawn(
        flow,
        trained,
        norm["patched_model"],
        positive["CONDITIONING"],
        negative["CONDITIONING"],
        latent["LATENT"],
        "adapter_trainer/qwen_image_edit",
    )
    drawing_row(
        flow,
        [[lora, shifted, norm], [positive, negative], [latent, sampler, decoded], [saved]],
        None,
    )
    return flow


def _clip(flow: Workflow) -> Node:
    values = {"clip_name": _TEXT, "type": "qwen_image"}
    return flow.node("CLIPLoader", values, models=[model(_TEXT)])


def _drawn(
    flow: Workflow,
    trained: Trained,
    denoiser: Output,
    positive: Output,
    negative: Output,
    latent: Output,
    prefix: str,
) -> tuple[Node, Node, Node]:
    sampler = flow.node(
        "KSampler",
        {
            "model": denoiser,
            "positive": positive,
            "negative": negative,
            "latent_image": latent,
            "steps": 20,
            "cfg": 4.0,
            "sampler_name": "euler",
            "scheduler": "simple",
        },
    )
    decoded = flow.node("VAEDecode", {"samples": sampler["LATENT"], "vae": trained.vae})
    saved = flow.node("SaveImage", {"images": decoded["IMAGE"], "filename_prefix": prefix})
    return sampler, decoded, saved
