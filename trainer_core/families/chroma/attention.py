"""Attention in a batch whose texts have different lengths, without a mask.

Diffusers gives its blocks a mask, but not those with one stream when activations are computed
again: there, padding would be attended to. And its mask rules out whole rows, of which a kernel may
make NaN.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class TextsApart:
    """Diffusers' attention, called for one sample after the other where texts differ in length."""

    def __init__(self, plain: Callable[..., Any]) -> None:
        self.plain = plain

    # Diffusers passes only what is named here.
    def __call__(
        self,
        attn: nn.Module,
        hidden_states: Tensor,
        encoder_hidden_states: Tensor | None = None,
        attention_mask: Tensor | None = None,
        image_rotary_emb: Any = None,
    ) -> Any:
        """Attend over texts `[B, L, D]` and images `[B, T, D]` together.

        Args:
            hidden_states: Of the images; of texts and images where there is one stream.
            encoder_hidden_states: Of the texts, filled up to one length at the right.
            attention_mask: As Diffusers'.
            image_rotary_emb: Rotary positions of texts and images, two tensors `[L + T, head]`; as
                third the lengths of the texts, where these differ.

        Returns:
            As Diffusers': of the same shapes; zeros where texts are filled up.
        """
        rotary, lengths = image_rotary_emb[:2], image_rotary_emb[2:]
        if not lengths:
            return self.plain(attn, hidden_states, encoder_hidden_states, attention_mask, rotary)
        longest = max(lengths[0])
        images: list[Tensor] = []
        texts: list[Tensor] = []
        for index, length in enumerate(lengths[0]):
            places = tuple(torch.cat([each[:length], each[longest:]]) for each in rotary)
            one = hidden_states[index : index + 1]
            if encoder_hidden_states is None:
                one = torch.cat([one[:, :length], one[:, longest:]], dim=1)
                text, image = self.plain(attn, one, None, None, places).tensor_split([length], 1)
            else:
                own = encoder_hidden_states[index : index + 1, :length]
                image, text = self.plain(attn, one, own, None, places)
            images.append(image)
            texts.append(F.pad(text, (0, 0, 0, longest - length)))
        image, text = torch.cat(images), torch.cat(texts)
        return torch.cat([text, image], 1) if encoder_hidden_states is None else (image, text)


def keep_texts_apart(transformer: Any) -> None:
    """`LayerSpec.prepare`: let a denoiser's attention know of lengths, once."""
    if hasattr(transformer.pos_embed, "text_lengths"):
        return
    transformer.pos_embed.text_lengths = None
    transformer.pos_embed.register_forward_hook(_with_lengths)
    for block in (*transformer.transformer_blocks, *transformer.single_transformer_blocks):
        block.attn.processor = TextsApart(block.attn.processor)


def _with_lengths(positions: Any, lengths: Any, rotary: tuple[Tensor, ...]) -> tuple[Any, ...]:
    """Hand the lengths on beside the rotary positions: those go to every block, also again."""
    return rotary if positions.text_lengths is None else (*rotary, positions.text_lengths)
