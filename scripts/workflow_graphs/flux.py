"""Workflows for FLUX.1-dev and FLUX.1 Kontext at full size."""

from __future__ import annotations

from .full_size import Choice, Trained, drawing_row, model, training_half, with_adapter
from .graph import Node, Output, Workflow

_TEXTS = ("clip_l.safetensors", "t5xxl_fp8_e4m3fn_scaled.safetensors")
_VAE = "ae.safetensors"


def flux_dev_lora() -> Workflow:
    """LoRA for FLUX.1-dev."""
    flow = Workflow("flux_dev_lora", "A LoRA for FLUX.1-dev, straight into the sampler")
    choice = Choice(
        base="flux1-dev.safetensors",
        folder="datasets/my_pictures",
        adapter={"kind": "lora"},
        previews={
            "prompts": "a portrait of a woman in a garden\na small house by a lake",
            "guidance": 3.5,
        },
        run={"name": "my_flux"},
    )
    about = flow.note(
        """
## Train FLUX.1-dev on your pictures

1. Put 10 to 50 pictures into *datasets/my_pictures* below ComfyUI's folder, each with a text file
   of the same name that holds its caption. Choose that folder in **Dataset From Folder**.
2. Choose the four files below and the same diffusion model in **Load Training Base**. Plain
   bf16, fp16 and fp8_e4m3fn files and fp8_scaled ones can be read.
3. Set *name* and *steps* in **Train Adapter** and press **Run**.

A step holds the whole base in bf16, about 22 GiB: choose a graphics card with more than that.
""",
        300,
    )
    trained = training_half(flow, choice, about, _clips(flow), _VAE)
    lora = with_adapter(flow, trained.model)
    prompt = flow.node(
        "CLIPTextEncode",
        {"clip": trained.clip, "text": "a portrait of a woman in a garden"},
        title="Prompt",
    )
    latent = flow.node("EmptySD3LatentImage", {"width": 1024, "height": 1024})
    guided, nothing, sampler, decoded, saved = _drawn(
        flow, trained, lora, prompt["CONDITIONING"], latent["LATENT"], 3.5, "adapter_trainer/flux"
    )
    drawing_row(
        flow, [[lora, latent], [prompt, guided, nothing], [sampler, decoded], [saved]], latent
    )
    return flow


def flux_kontext() -> Workflow:
    """LoRA for FLUX.1 Kontext, with control pictures."""
    flow = Workflow("flux_kontext_lora", "A LoRA for FLUX.1 Kontext from pairs of pictures")
    choice = Choice(
        base="flux1-dev-kontext_fp8_scaled.safetensors",
        folder="datasets/my_pairs",
        adapter={"kind": "lora"},
        previews={"prompts": "turn the picture into a watercolour", "guidance": 2.5, "control": ""},
        run={"name": "my_kontext"},
        dataset={"layout": "paired"},
    )
    about = flow.note(
        """
## Teach FLUX.1 Kontext an edit

1. In *datasets/my_pairs* below ComfyUI's folder make *control_images* (before) and
   *training_images* (after), with the same file names, and in *training_images* a text file for
   each picture with the instruction.
2. Choose the four files below and the same diffusion model in **Load Training Base**.
3. Choose a picture to edit: it is used for the previews and at the end.
4. Set *name* and *steps* in **Train Adapter** and press **Run**.

A step holds the whole base in bf16, about 22 GiB: choose a graphics card with more than that.
""",
        300,
    )
    trained = training_half(flow, choice, about, _clips(flow), _VAE)
    assert trained.picture is not None
    lora = with_adapter(flow, trained.model)
    prompt = flow.node(
        "CLIPTextEncode",
        {"clip": trained.clip, "text": "turn the picture into a watercolour"},
        title="Instruction",
    )
    latent = flow.node("VAEEncode", {"pixels": trained.picture, "vae": trained.vae})
    reference = flow.node(
        "ReferenceLatent",
        {"conditioning": prompt["CONDITIONING"], "latent": latent["LATENT"]},
    )
    guided, nothing, sampler, decoded, saved = _drawn(
        flow,
        trained,
        lora,
        reference["CONDITIONING"],
        latent["LATENT"],
        2.5,
        "adapter_trainer/flux_kontext",
    )
    drawing_row(
        flow,
        [[lora, latent], [prompt, reference, guided, nothing], [sampler, decoded], [saved]],
        None,
    )
    return flow


def _clips(flow: Workflow) -> Node:
    first, second = _TEXTS
    values = {"clip_name1": first, "clip_name2": second, "type": "flux"}
    return flow.node("DualCLIPLoader", values, models=[model(name) for name in _TEXTS])


def _drawn(
    flow: Workflow,
    trained: Trained,
    lora: Node,
    positive: Output,
    latent: Output,
    guidance: float,
    prefix: str,
) -> tuple[Node, Node, Node, Node, Node]:
    guided = flow.node("FluxGuidance", {"conditioning": positive, "guidance": guidance})
    # At cfg 1 the negative side is not computed, and the sampler only wants something there.
    nothing = flow.node("ConditioningZeroOut", {"conditioning": positive})
    sampler = flow.node(
        "KSampler",
        {
            "model": lora["model"],
            "positive": guided["CONDITIONING"],
            "negative": nothing["CONDITIONING"],
            "latent_image": latent,
            "steps": 20,
            "cfg": 1.0,
            "sampler_name": "euler",
            "scheduler": "simple",
        },
    )
    decoded = flow.node("VAEDecode", {"samples": sampler["LATENT"], "vae": trained.vae})
    saved = flow.node("SaveImage", {"images": decoded["IMAGE"], "filename_prefix": prefix})
    return guided, nothing, sampler, decoded, saved
