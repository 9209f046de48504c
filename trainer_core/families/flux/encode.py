"""Captions and images of FLUX.1 as tensors, and latents as images."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from ...adapter_files.names.text_encoder_names import TEXT_ENCODER
from ...data.captions.length import CountTokens
from ...types import Conditioning
from ...weights.base_location import BaseLocation
from ...weights.loading import load_frozen, load_words
from ..chat_text import require_controls
from ..diffusers_parts import Vae, area_size, load_tokens
from ..flux_vae import load_vae
from ..trainable_text import CLIP_L
from .fill import masked_latents

if TYPE_CHECKING:
    from PIL.Image import Image

_CONTROLS = {"generate": (0, 0), "edit": (0, 1), "fill": (1, 1)}
_KONTEXT_AREA = 1024 * 1024
# The sizes that Kontext was trained at, of about 1024 x 1024 pixels; the mirrored ones count too.
_WIDE_SIZES = (
    (1024, 1024),
    (1104, 944),
    (1184, 880),
    (1248, 832),
    (1328, 800),
    (1392, 752),
    (1456, 720),
    (1504, 688),
    (1568, 672),
)
_KONTEXT_SIZES = sorted({*_WIDE_SIZES, *((high, wide) for wide, high in _WIDE_SIZES)})


def control_size(width: int, height: int, area: int) -> tuple[int, int]:
    """`LatentSpec.control_size`: at 1048576 the size of Kontext's own that is nearest in shape.

    As Diffusers and ComfyUI choose it; at any other area as `area_size`.
    """
    if area != _KONTEXT_AREA:
        return area_size(width, height, area)
    ratio = width / height
    return min(_KONTEXT_SIZES, key=lambda size: abs(ratio - size[0] / size[1]))


@dataclass(slots=True)
class FluxEncoders:
    """Text and image encoders.

    Attributes:
        tokenizer: CLIP's tokenizer.
        text_encoder: transformers' ``CLIPTextModel``; None where it is a part of the denoiser.
        tokenizer_2: T5's tokenizer.
        text_encoder_2: transformers' ``T5EncoderModel``.
        vae: The image encoder.
        variant: ``generate``, ``edit`` or ``fill``.
        text_length: Number of T5 tokens; shorter captions are padded, longer ones cut off.
    """

    tokenizer: Any
    text_encoder: Any
    tokenizer_2: Any
    text_encoder_2: Any
    vae: Vae
    variant: str
    text_length: int

    @property
    def text_models(self) -> tuple[Any, ...]:
        """CLIP, where it is one of them, and T5."""
        own = () if self.text_encoder is None else (self.text_encoder,)
        return *own, self.text_encoder_2

    def encode_image(self, pixels: Tensor) -> Tensor:
        """Images `[B, 3, H, W]` in [-1, 1] to normalised latents `[B, C, h, w]`, float32.

        Control images of Fill have transparency, `[B, 4, H, W]`: `[B, C + 64, h, w]`.
        """
        if pixels.shape[1] == 3:
            return self.vae.encode(pixels)
        return masked_latents(pixels, self.vae.encode)

    @torch.no_grad()
    def encode_text(self, caption: str, controls: Sequence[Image] = ()) -> Conditioning:
        """Encode a caption, which may be empty; the text encoders do not see control images.

        ``text_embeddings`` `[L, D]` of T5 and ``pooled_text`` `[P]` of CLIP, float32; where CLIP is
        a part of the denoiser, ``clip_tokens`` `[77]` for it. The denoiser attends to the padding
        as well, as it did when it was trained.

        Raises:
            DatasetError: When the number of control images does not fit the variant.
        """
        return self.encode_texts([caption], [controls])[0]

    @torch.no_grad()
    def encode_texts(
        self, captions: Sequence[str], controls: Sequence[Sequence[Image]]
    ) -> list[Conditioning]:
        """As `encode_text` of each, in one pass of each model: all texts are equally long."""
        for caption, images in zip(captions, controls, strict=True):
            require_controls(caption, len(images), _CONTROLS[self.variant], self.variant)
        length = self.tokenizer.model_max_length
        tokens = self._ids(self.tokenizer, captions, length)
        texts = self.text_encoder_2(self._ids(self.tokenizer_2, captions, self.text_length))[0]
        if self.text_encoder is None:
            name, found = CLIP_L.tokens, tokens
        else:
            name, found = CLIP_L.pooled, self.text_encoder(tokens).pooler_output.float()
        return [
            {"text_embeddings": text.float(), name: own}
            for text, own in zip(texts, found, strict=True)
        ]

    def _ids(self, tokenizer: Any, captions: Sequence[str], length: int) -> Tensor:
        tokens = tokenizer(
            list(captions),
            padding="max_length",
            max_length=length,
            truncation=True,
            return_tensors="pt",
        )
        return tokens.input_ids.to(self.text_encoder_2.device)


def load_encoders(
    location: BaseLocation, dtype: torch.dtype, device: torch.device | str
) -> FluxEncoders:
    """`Family.load_encoders`, for the base's variant."""

    def encoder(kind: str, part: str) -> Any:
        return load_frozen(
            f"transformers.{kind}", location.encoders, part, dtype=dtype, device=device
        )

    return FluxEncoders(
        tokenizer=load_words("AutoTokenizer", location.encoders, "tokenizer"),
        text_encoder=None if location.reads_tokens else encoder(CLIP_L.kind, TEXT_ENCODER),
        tokenizer_2=load_words("AutoTokenizer", location.encoders, "tokenizer_2"),
        text_encoder_2=encoder("T5EncoderModel", "text_encoder_2"),
        vae=load_vae(location, dtype, device),
        variant=location.variant,
        text_length=location.text_length,
    )


def load_token_counter(location: BaseLocation) -> CountTokens:
    """`TextSpec.load_token_counter`: T5's tokens with its end token.

    CLIP reads the first 75 of its own whatever the length is, for the pooled text alone.
    """
    count = load_tokens(location, "tokenizer_2")
    return lambda caption, images: count(caption)
