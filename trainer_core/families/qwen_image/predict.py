"""The denoiser of Qwen-Image in the trainer's convention, and its attention without a mask."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache, partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ...types import Conditioning
from ..diffusers_parts import computing_dtype, inner_module, pack, pad_text, pipeline_time, unpack

LENGTHS = "text_lengths"
"""The keyword by which the lengths go to each block's attention."""


class TextsApart:
    """Diffusers' attention, called for one sample after the other where texts differ in length.

    A mask would rule out the fastest kernels, and let every sample attend over as many tokens as
    the longest text has. Whatever else a block does needs none, and takes the batch as one.
    """

    def __init__(self, plain: Callable[..., tuple[Tensor, Tensor]]) -> None:
        self.plain = plain

    # Diffusers passes only what is named here.
    def __call__(
        self,
        attn: nn.Module,
        hidden_states: Tensor,
        encoder_hidden_states: Tensor,
        encoder_hidden_states_mask: Tensor | None = None,
        attention_mask: Tensor | None = None,
        image_rotary_emb: Any = None,
        text_lengths: Sequence[int] | None = None,
    ) -> tuple[Tensor, Tensor]:
        """Attend, over images ``[B, T, D]`` and texts ``[B, L, D]`` together.

        Args:
            encoder_hidden_states: Of the texts, filled up to one length at the right.
            encoder_hidden_states_mask: As Diffusers'.
            attention_mask: As Diffusers'.
            image_rotary_emb: Rotary positions of image and text.
            text_lengths: Of each sample; None where a mask, or none at all, is right.

        Returns:
            Of the same shapes; zeros where texts are filled up.
        """
        if text_lengths is None:
            return self.plain(
                attn,
                hidden_states,
                encoder_hidden_states=encoder_hidden_states,
                encoder_hidden_states_mask=encoder_hidden_states_mask,
                attention_mask=attention_mask,
                image_rotary_emb=image_rotary_emb,
            )
        of_images, of_texts = image_rotary_emb
        images: list[Tensor] = []
        texts: list[Tensor] = []
        for index, length in enumerate(text_lengths):
            image, text = self.plain(
                attn,
                hidden_states[index : index + 1],
                encoder_hidden_states=encoder_hidden_states[index : index + 1, :length],
                image_rotary_emb=(of_images, of_texts[:length]),
            )
            images.append(image)
            texts.append(F.pad(text, (0, 0, 0, encoder_hidden_states.shape[1] - length)))
        return torch.cat(images), torch.cat(texts)


def keep_texts_apart(transformer: nn.Module) -> None:
    """Let a denoiser's attention know of lengths."""
    for attention in _attentions(transformer):
        if not isinstance(attention.processor, TextsApart):
            attention.processor = TextsApart(attention.processor)


def knows_lengths(transformer: nn.Module) -> bool:
    """Whether a denoiser's attention reads `LENGTHS`; another would pass over them."""
    found = _attentions(transformer)
    return bool(found) and all(isinstance(each.processor, TextsApart) for each in found)


def _attentions(transformer: Any) -> list[Any]:
    return [block.attn for block in getattr(transformer, "transformer_blocks", ())]


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
