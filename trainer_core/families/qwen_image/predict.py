"""The denoiser of Qwen-Image in the trainer's convention."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache, partial

import torch
from torch import Tensor, nn

from ...types import Conditioning
from ..diffusers_parts import computing_dtype, inner_module, pack, pad_text, pipeline_time, unpack
from .attention import LENGTHS, keep_texts_apart, knows_lengths

_WITH_FRAMES = 5  # dimensions of latents of an image and its layers

_LONG = 1024
"""Image tokens from which on a sample alone keeps a device busy: those of 512 x 512 pixels."""


def prepare(transformer: nn.Module) -> None:
    """`LayerSpec.prepare`: the model itself remembers rotary tables; attention needs no mask.

    Diffusers remembers them in caches of the class, which would keep those of every model that was
    ever loaded, on a GPU in its memory. These caches go with the model.
    """
    rope = transformer.get_submodule("pos_embed")
    for name in ("_get_device_freqs", "_compute_video_freqs", "_compute_condition_freqs"):
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
    index in the rotary positions. So have the layers of an image, whose tokens follow its own; that
    of its control image is then -1. No published base is conditioned on guidance: the flag in the
    configuration has no weights behind it. Each conditioning has ``text_embeddings`` `[L, D]`.
    """
    dtype = computing_dtype(transformer)
    targets = noisy.unbind(2) if noisy.ndim == _WITH_FRAMES else (noisy,)
    images = [*targets, *controls]
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
        **_transparency(transformer, sigma),
    )[0]
    return _frames(output, noisy.shape).to(noisy.dtype)


def _transparency(transformer: nn.Module, sigma: Tensor) -> dict[str, Tensor]:
    """What a model for layers is told besides the time: 0 for images with transparency."""
    if not getattr(inner_module(transformer).config, "use_additional_t_cond", False):
        return {}
    return {"additional_t_cond": torch.zeros_like(sigma, dtype=torch.long)}


def _tokens(latents: Tensor) -> Tensor:
    """`pack`, of the frames one after another where there are several."""
    frames = latents.unbind(2) if latents.ndim == _WITH_FRAMES else (latents,)
    return torch.cat([pack(frame) for frame in frames], dim=1)


def _frames(tokens: Tensor, shape: torch.Size) -> Tensor:
    """Undo `_tokens`; what follows is left out."""
    if len(shape) < _WITH_FRAMES:
        return unpack(tokens, *shape[-2:])
    size = shape[-2] * shape[-1] // 4
    frames = tokens[:, : shape[2] * size].split(size, dim=1)
    return torch.stack([unpack(frame, *shape[-2:]) for frame in frames], dim=2)


def guide(conditional: Tensor, unconditional: Tensor, scale: float) -> Tensor:
    """`PredictionSpec.guide`, keeping the length of each token's conditional velocity."""
    kept, dropped = _tokens(conditional), _tokens(unconditional)
    combined = dropped + scale * (kept - dropped)
    length = kept.norm(dim=-1, keepdim=True) / combined.norm(dim=-1, keepdim=True)
    return _frames(combined * length, conditional.shape)
