"""Turns captions and instructions into the text conditioning of the pipelines.

The same strings, cuts and pictures as in the three Qwen-Image pipelines of
Diffusers, but for many prompts at once.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from diffusers import QwenImageEditPipeline, QwenImageEditPlusPipeline, QwenImagePipeline
from PIL import Image
from transformers import (
    Qwen2_5_VLForConditionalGeneration,
    Qwen2Tokenizer,
    Qwen2VLImageProcessorPil,
)

from .tokenizer import prompt_template

IMAGE_TOKENS = 1
"""Vision tokens of one square control picture."""

_IMAGE = "<|vision_start|>" + "<|image_pad|>" * IMAGE_TOKENS + "<|vision_end|>"


@dataclass(frozen=True)
class TextBatch:
    """Text conditioning of several prompts.

    Attributes:
        states: Hidden states, ``[B, L, D]``, zero where there is no token.
        mask: True where there is a token, ``[B, L]``.
    """

    states: torch.Tensor
    mask: torch.Tensor

    def __getitem__(self, index: torch.Tensor) -> TextBatch:
        """Selects some prompts and drops columns that none of them uses."""
        mask = self.mask[index]
        length = int(mask.sum(dim=1).max())
        return TextBatch(self.states[index, :length], mask[:, :length])


def joined(batches: list[TextBatch]) -> TextBatch:
    """Stacks batches of different lengths along the batch axis."""
    length = max(batch.mask.shape[1] for batch in batches)
    states = [_padded(batch.states, length) for batch in batches]
    masks = [_padded(batch.mask, length) for batch in batches]
    return TextBatch(torch.cat(states), torch.cat(masks))


def _padded(values: torch.Tensor, length: int) -> torch.Tensor:
    shape = (values.shape[0], length - values.shape[1], *values.shape[2:])
    return torch.cat([values, values.new_zeros(shape)], dim=1)


@dataclass(frozen=True)
class Conditioner:
    """The frozen parts that make text conditioning.

    Attributes:
        tokenizer: The tokenizer of the base model.
        encoder: The text encoder of the base model.
        images: The picture preprocessing of its vision tower.
    """

    tokenizer: Qwen2Tokenizer
    encoder: Qwen2_5_VLForConditionalGeneration
    images: Qwen2VLImageProcessorPil

    def captions(self, texts: list[str]) -> TextBatch:
        """Encodes captions the way ``QwenImagePipeline`` does."""
        template, drop = prompt_template(QwenImagePipeline)
        return self._encode([template.format(text) for text in texts], drop)

    def instructions(
        self, texts: list[str], controls: np.ndarray, plus: bool, chunk: int = 128
    ) -> TextBatch:
        """Encodes edit instructions together with their control pictures.

        Args:
            texts: One instruction per control picture.
            controls: Control pictures, uint8 ``[B, H, W, 3]``.
            plus: Whether in the form of ``QwenImageEditPlusPipeline`` instead
                of ``QwenImageEditPipeline``.
            chunk: How many prompts are encoded at once.
        """
        template, drop = prompt_template(
            QwenImageEditPlusPipeline if plus else QwenImageEditPipeline
        )
        image = f"Picture 1: {_IMAGE}" if plus else _IMAGE
        slot = "{}" if plus else "<|vision_start|><|image_pad|><|vision_end|>{}"
        prompts = [template.replace(slot, image + text) for text in texts]
        parts = []
        for start in range(0, len(prompts), chunk):
            images = [Image.fromarray(control) for control in controls[start : start + chunk]]
            parts.append(self._encode(prompts[start : start + chunk], drop, images))
        return joined(parts)

    @torch.no_grad()
    def _encode(
        self, prompts: list[str], drop: int, images: list[Image.Image] | None = None
    ) -> TextBatch:
        tokens = self.tokenizer(prompts, padding=True, return_tensors="pt", padding_side="right")
        vision = dict(self.images(images=images, return_tensors="pt")) if images else {}
        states = self.encoder.model(
            input_ids=tokens.input_ids, attention_mask=tokens.attention_mask, **vision
        ).last_hidden_state
        mask = tokens.attention_mask.bool()[:, drop:]
        return TextBatch(states[:, drop:] * mask[..., None], mask)
