"""The denoiser of Krea 2 in the trainer's convention, and what moves its noise levels."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from ...diffusion.sigma import ShiftSettings
from ...types import Conditioning
from ...weights.base_location import BaseLocation
from ...weights.diffusers_folder import read_json
from ..base_names import base_name, distilled_by_name, says_not_distilled
from ..diffusers_parts import computing_dtype, inner_module, pack, pad_text, read_shift, unpack

_TURBO_MU = 1.15
_TURBO = re.compile(r"(?<![a-z])turbo(?![a-z])")
_ADVICE = "Train on Krea 2 raw: its adapters are made to be used on turbo, as its authors advise."


def prepare(transformer: nn.Module) -> None:
    """`LayerSpec.prepare`: the scales of norms are in float32, whatever the base is loaded in.

    They are stored around zero and 1 is added to them. In bfloat16 the sum would lose what ComfyUI
    and Diffusers' own loader keep: up to 2^-7 of a scale.
    """
    model = inner_module(transformer)
    kept = frozenset(model._keep_in_fp32_modules)
    for path, module in model.named_modules():
        if path.rpartition(".")[2] in kept and isinstance(module.weight, nn.Parameter):
            module.weight.data = module.weight.data.float()


def predict(
    transformer: nn.Module,
    noisy: Tensor,
    sigma: Tensor,
    conditionings: Sequence[Conditioning],
    controls: Sequence[Tensor] = (),
    guidance: float = 1.0,
) -> Tensor:
    """`Predict` for Krea 2.

    Each conditioning has ``text_embeddings`` `[L, S, D]`: S hidden states of the text encoder for
    each token. All of the text is at the same rotary position, so that padding changes nothing but
    has to be masked. Sigma goes in as float32, as ComfyUI hands it on; Diffusers' pipeline rounds
    it to the format of the latents. No base takes control images or guidance.
    """
    del controls, guidance
    dtype = computing_dtype(transformer)
    text, mask = pad_text([item["text_embeddings"] for item in conditionings])
    output = transformer(
        hidden_states=pack(noisy).to(dtype),
        encoder_hidden_states=text.to(noisy.device, dtype),
        timestep=sigma.to(noisy.device, torch.float32),
        position_ids=_positions(text.shape[1], noisy),
        encoder_attention_mask=None if mask is None else mask.to(noisy.device),
        return_dict=False,
    )[0]
    return unpack(output, *noisy.shape[-2:]).to(noisy.dtype)


def _positions(text: int, latents: Tensor) -> Tensor:
    """`[text + image tokens, 3]`: text at the origin, image tokens by row and column."""
    rows, columns = (side // 2 for side in latents.shape[-2:])
    grid = torch.zeros(rows, columns, 3, device=latents.device)
    grid[..., 1] = torch.arange(rows, device=latents.device)[:, None]
    grid[..., 2] = torch.arange(columns, device=latents.device)
    return torch.cat([grid.new_zeros(text, 3), grid.flatten(0, 1)])


def conditioning_shapes(config: Mapping[str, Any], tokens: int) -> dict[str, tuple[int, ...]]:
    """`TextSpec.conditioning_shapes`."""
    return {"text_embeddings": (tokens, config["num_text_layers"], config["text_hidden_dim"])}


def is_turbo(location: BaseLocation) -> bool:
    """Whether a base is distilled to few steps: its folder says so, of a file only the name."""
    if read_json(location.folder / "model_index.json").get("is_distilled") is True:
        return True
    return _TURBO.search(base_name(location)) is not None and not says_not_distilled(location)


def distilled(location: BaseLocation) -> str:
    """`Family.distilled`: what to train on instead of turbo."""
    return _ADVICE if is_turbo(location) else distilled_by_name(location)


def shift(location: BaseLocation, steps: int) -> ShiftSettings:
    """`PredictionSpec.shift`: by the image's tokens for raw, the same for every image for turbo."""
    del steps
    settings = read_shift(location)
    return replace(settings, mu=lambda tokens: _TURBO_MU) if is_turbo(location) else settings
