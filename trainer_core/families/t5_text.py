"""Captions that T5 or UMT5 encodes alone, and images and clips, as tensors."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

import torch
from torch import Tensor

from ..data.captions.length import CountTokens
from ..errors import DatasetError
from ..types import Conditioning
from ..weights.base_location import BaseLocation
from ..weights.loading import load_frozen, load_words
from .chat_text import text_batch
from .diffusers_parts import Vae, load_tokens

if TYPE_CHECKING:
    from PIL.Image import Image

    from .family_specs import LoadVae


_Encoders = TypeVar("_Encoders", bound="T5Encoders")


@dataclass(slots=True)
class T5Encoders:
    """Text and image encoders.

    Attributes:
        tokenizer: T5's.
        text_encoder: transformers' ``T5EncoderModel`` or ``UMT5EncoderModel``.
        vae: The image encoder.
        text_length: Most text tokens, with the one at the end; longer captions are cut off.
        title: Of the family.
    """

    tokenizer: Any
    text_encoder: Any
    vae: Vae
    text_length: int
    title: str

    @property
    def text_models(self) -> tuple[Any, ...]:
        """T5."""
        return (self.text_encoder,)

    def encode_image(self, pixels: Tensor) -> Tensor:
        """Images `[B, 3, H, W]` in [-1, 1] to normalised latents `[B, C, h, w]`, float32."""
        return self.vae.encode(pixels)

    def encode_clip(self, frames: Tensor) -> Tensor:
        """As `ClipEncoders`, of a base of videos."""
        return self.vae.encode_clip(frames)

    @torch.no_grad()
    def encode_text(self, caption: str, controls: Sequence[Image] = ()) -> Conditioning:
        """Encode a caption, which may be empty; no base of these families takes control images.

        ``text_embeddings`` `[L, D]` of T5, float32, as long as the caption is: without padding.

        Raises:
            DatasetError: When there are control images.
        """
        return self.encode_texts([caption], [controls])[0]

    @torch.no_grad()
    def encode_texts(
        self, captions: Sequence[str], controls: Sequence[Sequence[Image]]
    ) -> list[Conditioning]:
        """As `encode_text` of each, in one pass of the model."""
        for caption, images in zip(captions, controls, strict=True):
            if images:
                raise DatasetError(
                    f"{len(images)} control images for the caption {caption[:60]!r}",
                    f"none, as {self.title} generates from text alone",
                    "Use a folder without control images, or train a base that edits.",
                )
        ids = self.tokenizer(list(captions), max_length=self.text_length, truncation=True).input_ids
        rows = self.text_encoder(**text_batch(ids, self.text_encoder.device))[0]
        return [
            {"text_embeddings": row[: len(own)].float()} for row, own in zip(rows, ids, strict=True)
        ]


def load_t5_encoders(
    kind: str,
    title: str,
    load_vae: LoadVae,
    location: BaseLocation,
    dtype: torch.dtype,
    device: torch.device | str,
    form: type[_Encoders],
) -> _Encoders:
    """`Family.load_encoders`, by the class of the text encoder and the family's title."""
    return form(
        tokenizer=load_words("AutoTokenizer", location.encoders, "tokenizer"),
        text_encoder=load_frozen(
            kind, location.encoders, "text_encoder", dtype=dtype, device=device
        ),
        vae=load_vae(location, dtype, device),
        text_length=location.text_length,
        title=title,
    )


def load_t5_counter(location: BaseLocation) -> CountTokens:
    """`TextSpec.load_token_counter`: T5's tokens with its end token."""
    count = load_tokens(location, "tokenizer")
    return lambda caption, images: count(caption)
