"""Attention in a batch whose texts have different lengths, without a mask."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

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
