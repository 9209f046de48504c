"""What KSampler is given of a control clip, by ComfyUI's class of a model.

Source: ComfyUI 0.33, ``comfy_extras/nodes_wan.py``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from . import comfy_host
from .clip_and_vae_inputs import Vae
from .ordinary_tensors import ordinary_copy

if TYPE_CHECKING:
    from torch import Tensor

_GREY, _MASK_CHANNELS = 0.5, 64


@dataclass(frozen=True)
class ControlRule:
    """How one class is steered.

    Attributes:
        encode: From the VAE and the frames `[T, H, W, 3]` in [0, 1] to latents of the VAE
            `[1, C, f, h, w]`.
        inputs: From these latents, and those of the clip's first frame or None, to the entries of
            the conditioning.
    """

    encode: Callable[[Vae, Tensor], Tensor]
    inputs: Callable[[Tensor, Tensor | None], dict[str, Any]]


def control_rule(model: Any) -> ControlRule | None:
    """How a ``BaseModel`` is steered by a control clip; None where it is not."""
    config = type(getattr(model, "model_config", None)).__name__
    return _RULES.get(type(model).__name__) or _RULES.get(config)


def encoded_control(rule: ControlRule, vae: Vae, frames: Tensor) -> Tensor:
    """Encode a control clip `[T, 3, H, W]`, uint8, to latents of the VAE `[C, f, h, w]`."""
    return ordinary_copy(rule.encode(vae, frames.movedim(1, -1).float() / 255)[0])


def _vace(vae: Vae, frames: Tensor) -> Tensor:
    """What stays and what is generated; without a mask all is generated."""
    import torch

    around = frames - _GREY
    parts = (around * 0.0 + _GREY, around * 1.0 + _GREY)
    return torch.cat([vae.encode(each) for each in parts], dim=1)


def _vace_inputs(latents: Tensor, start: Tensor | None) -> dict[str, Any]:
    """``WanVaceToVideo`` at strength 1, without a reference image."""
    assert start is None
    mask = latents.new_ones((1, _MASK_CHANNELS, *latents.shape[2:]))
    return {"vace_frames": [latents], "vace_mask": [mask], "vace_strength": [1.0]}


def _fun_inputs(latents: Tensor, start: Tensor | None) -> dict[str, Any]:
    """``WanFunControlToVideo``."""
    import torch

    form = comfy_host.comfyui_module("comfy.latent_formats").Wan21()
    first = form.process_out(torch.zeros_like(latents))
    if start is not None:
        first[:, :, : start.shape[2]] = start
    return {"concat_latent_image": torch.cat([latents, first], dim=1)}


_RULES: Mapping[str, ControlRule] = {
    "WAN21_Vace": ControlRule(_vace, _vace_inputs),
    "WAN21_FunControl2V": ControlRule(lambda vae, frames: vae.encode(frames), _fun_inputs),
}
"""ComfyUI's classes and configurations of models to how they are steered."""
