"""Tiny MODELs of ComfyUI's own classes; ComfyUI's interpreter imports this."""

from __future__ import annotations

import contextlib
import functools

import comfy.ldm.anima.model
import comfy.model_management
import comfy.model_patcher
import comfy.supported_models
import torch

from .quantized import FORMATS, quantized_state
from .sizes import BEGINNING, SOUNDING, TINY, WIDTH, TinySizes
from .weights import fill

PRECISIONS = {
    "fp32": (torch.float32, None),
    "bf16": (torch.bfloat16, None),
    "fp16": (torch.float16, None),
    "fp16 cast": (torch.float16, torch.float32),
    "bf16 cast": (torch.bfloat16, torch.float32),
    "fp8 cast": (torch.float8_e4m3fn, torch.float32),
    **dict.fromkeys(FORMATS, (torch.float32, torch.float32)),
}
"""What the weights are kept in, and what ComfyUI's manual cast computes in.

Of those in `quantized.FORMATS` some Linear layers are quantised."""


def tiny_model(name: str, seed: int = 0, precision: str = "fp32", disable_dynamic: bool = False):
    """ComfyUI's MODEL with random weights.

    Args:
        name: One of `TINY`, `BEGINNING` or `SOUNDING`.
        seed: Of the weights.
        precision: One of `PRECISIONS`.
        disable_dynamic: As ComfyUI's loaders have it, which it calls again for a deep copy.
    """
    management, patchers = comfy.model_management, comfy.model_patcher
    make = patchers.ModelPatcher if disable_dynamic else patchers.CoreModelPatcher
    load, offload = management.get_torch_device(), management.unet_offload_device()
    sizes = {**TINY, **BEGINNING, **SOUNDING}[name]
    model = bare_model(sizes, precision).to(offload)
    if precision in FORMATS:
        whole = bare_model(sizes, "fp32").diffusion_model
        fill(whole, seed)
        model.load_model_weights(quantized_state(whole, precision), "")
    else:
        fill(model.diffusion_model, seed)
    patcher = make(model, load_device=load, offload_device=offload)
    patcher.cached_patcher_init = (tiny_model, (name, seed, precision))
    return patcher


def bare_model(sizes: TinySizes, precision: str, operations=None):
    """ComfyUI's model, whose weights have no values yet; of a pack's own ops, if there are any."""
    kind = getattr(comfy.supported_models, sizes.config)
    settings = kind(kind.unet_config | dict(sizes.unet))
    # The class has written what it takes for granted over them.
    settings.unet_config |= sizes.unet
    settings.set_inference_dtype(*PRECISIONS[precision])
    settings.custom_operations = operations
    settings.quant_config = {"mixed_ops": True} if precision in FORMATS else None
    marks = {key: torch.tensor(value) for key, value in sizes.marks.items()}
    with _small_adapter():
        return settings.get_model(marks, "")


@contextlib.contextmanager
def _small_adapter():
    """Anima makes the adapter of its text at one size, which has 96 million weights."""
    module = comfy.ldm.anima.model
    whole = module.LLMAdapter
    sizes = {"source_dim": WIDTH, "target_dim": WIDTH, "model_dim": WIDTH}
    module.LLMAdapter = functools.partial(whole, **sizes, num_layers=2, num_heads=2)
    try:
        yield
    finally:
        module.LLMAdapter = whole
