"""The denoiser of Qwen-Image in the trainer's convention."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache, partial

import torch
from torch import Tensor, nn

from ...types import Conditioning
from ..diffusers_parts import computing_dtype, inner_module, pack, pad_text, pipeline_time, unpack
from .attention import LENGTHS, keep_texts_apart, knows_lengths

_LONG = 1024
"""Image tokens from which on a sample alone keeps a device busy: those of 512 x 512 pixels."""


def prepare(transformer: nn.Module) -> None:
    """`Family.prepare`: rotary tables are remembered by the model itself; attention needs no mask.

    Diffusers remembers them in caches of the class, which would keep those of every model that was
    ever loaded, on a GPU in its memory. These caches go with the model.
    """
    rope = transformer.get_submodule("pos_embed")
    for name in ("_get_device_freqs", "_compute_video_freqs"):
        plain = getattr(getattr(type(rope), name, None), "__wrapped__", None)
        if plain is not None:
            setattr(rope, name, lru_cache(maxsize=128)(partial(plain, rope)))
    keep_texts_apart(transformer)


def predict(
    transformer: nn.Module,
    noisy: Tensor,
    sigma: Tensor,
    conditionings: Sequence[Conditioning],
    controls: Sequence[Tensor] = (),
    guidance: float = 1.0,
) -> Tensor:
    """`Predict` for Qwen-Image.

    The tokens of the control images follow those of the target; each image has its own frame
    index in the rotary positions. No published base is conditioned on guidance: the flag in the
    configuration has no weights behind it. Each
    conditioning has ``text_embeddings`` `[L, D]`.
    """
    dtype = computing_dtype(transformer)
    images = [noisy, *controls]
    tokens = torch.cat([pack(image) for image in images], dim=1).to(dtype)
    # Rotary positions are read from the first sample: a batch has one size.
    shape = [(1, image.shape[-2] // 2, image.shape[-1] // 2) for image in images]
    text, mask = pad_text([item["text_embeddings"] for item in conditionings])
    lengths: dict[str, tuple[int, ...]] | None = None
    if mask is not None and tokens.shape[1] >= _LONG and knows_lengths(inner_module(transformer)):
        lengths = {LENGTHS: tuple(len(item["text_embeddings"]) for item in conditionings)}
        mask = None
    output = transformer(
        hidden_states=tokens,
        timestep=pipeline_time(sigma, dtype),
        encoder_hidden_states=text.to(tokens),
        encoder_hidden_states_mask=None if mask is None else mask.to(tokens.device),
        img_shapes=[shape] * noisy.shape[0],
        attention_kwargs=lengths,
        return_dict=False,
    )[0]
    return unpack(output, *noisy.shape[-2:]).to(noisy.dtype)


def guide(conditional: Tensor, unconditional: Tensor, scale: float) -> Tensor:
    """`Family.guide`, keeping the length of each token's conditional velocity `[B, C, h, w]`."""
    height, width = conditional.shape[-2:]
    kept, dropped = pack(conditional), pack(unconditional)
    combined = dropped + scale * (kept - dropped)
    length = kept.norm(dim=-1, keepdim=True) / combined.norm(dim=-1, keepdim=True)
    return unpack(combined * length, height, width)
