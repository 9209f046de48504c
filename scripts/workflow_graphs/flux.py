"""Workflows for FLUX.1-dev and FLUX.1 Kontext at full size."""

from __future__ import annotations

from .full_size import (
    INSTRUCTION,
    PROMPT,
    Choice,
    Trained,
    drawing_row,
    drawn,
    model,
    training_half,
    with_adapter,
)
from .graph import Node, Output, Workflow

_TEXTS = ("clip_l.safetensors", "t5xxl_fp8_e4m3fn_scaled.safetensors")
_VAE = "ae.safetensors"
_DEV = Choice("FLUX.1-dev", "flux1-dev.safetensors", "lora", 3.5, "my_flux", "four", 22)
_KONTEXT = Choice(
    "FLUX.1 Kontext",
    "flux1-dev-kontext_fp8_scaled.safetensors",
    "lora",
    2.5,
    "my_kontext",
    "four",
    22,
    edits=True,
)


def flux_dev_lora() -> Workflow:
    """LoRA for FLUX.1-dev."""
    flow = Workflow("11_advanced_flux_dev", "A LoRA for FLUX.1-dev, straight into the sampler")
    trained = training_half(flow, _DEV, _clips(flow), _VAE)
    lora = with_adapter(flow, trained.model)
    prompt = flow.node("CLIPTextEncode", {"clip": trained.clip, "text": PROMPT}, title="Prompt")
    latent = flow.node("EmptySD3LatentImage", {"width": 1024, "height": 1024})
    guides, last = _drawn(
        flow, trained, lora, prompt["CONDITIONING"], latent["LATENT"], 3.5, "flux"
    )
    drawing_row(flow, [[lora, latent], [prompt, *guides], *last], latent)
    return flow


def flux_kontext() -> Workflow:
    """LoRA for FLUX.1 Kontext, with control images."""
    flow = Workflow("12_advanced_flux_kontext", "A LoRA for FLUX.1 Kontext from pairs of images")
    trained = training_half(flow, _KONTEXT, _clips(flow), _VAE)
    assert trained.image is not None
    lora = with_adapter(flow, trained.model)
    instruction = {"clip": trained.clip, "text": INSTRUCTION}
    prompt = flow.node("CLIPTextEncode", instruction, title="Instruction")
    latent = flow.node("VAEEncode", {"pixels": trained.image, "vae": trained.vae})
    reference = flow.node(
        "ReferenceLatent",
        {"conditioning": prompt["CONDITIONING"], "latent": latent["LATENT"]},
    )
    guides, last = _drawn(
        flow, trained, lora, reference["CONDITIONING"], latent["LATENT"], 2.5, "flux_kontext"
    )
    drawing_row(flow, [[lora, latent], [prompt, reference, *guides], *last], None)
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
) -> tuple[list[Node], list[list[Node]]]:
    guided = flow.node("FluxGuidance", {"conditioning": positive, "guidance": guidance})
    # At cfg 1 the negative side is not computed, and the sampler only wants something there.
    nothing = flow.node("ConditioningZeroOut", {"conditioning": positive})
    sides = guided["CONDITIONING"], nothing["CONDITIONING"]
    return [guided, nothing], drawn(flow, trained, lora["model"], *sides, latent, 1.0, prefix)
