"""Captions and images of FLUX.1 as tensors, and latents as images."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from ...data.captions import CountTokens
from ...errors import DatasetError
from ...types import Conditioning
from ...weights.base_location import BaseLocation
from ...weights.diffusers_folder import read_json
from ...weights.loading import load_frozen, load_words, reading_part
from ..diffusers_parts import area_size

if TYPE_CHECKING:
    from PIL.Image import Image

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


def latent_shape(location: BaseLocation, width: int, height: int) -> tuple[int, int, int]:
    """`Family.latent_shape`: ``(C, h, w)`` of an image, with even h and w."""
    config = read_json(location.encoders / "vae" / "config.json")
    with reading_part(location.encoders / "vae"):
        patch = 2 * 2 ** (len(config["block_out_channels"]) - 1)
        return int(config.get("latent_channels", 16)), 2 * (height // patch), 2 * (width // patch)


def control_size(width: int, height: int, area: int) -> tuple[int, int]:
    """The size at which a control image is encoded.

    Args:
        width: Width of the image in pixels.
        height: Height of the image in pixels.
        area: Number of pixels wanted.

    Returns:
        At 1048576 the one of Kontext's own sizes that is nearest in shape, as Diffusers and ComfyUI
        choose it; else `area_size`.
    """
    if area != _KONTEXT_AREA:
        return area_size(width, height, area)
    ratio = width / height
    return min(_KONTEXT_SIZES, key=lambda size: abs(ratio - size[0] / size[1]))


class FluxVae:
    """The image encoder and decoder, in the normalised space of the denoiser.

    Args:
        vae: Diffusers' ``AutoencoderKL``.
    """

    def __init__(self, vae: Any) -> None:
        self.vae = vae
        self.shift = float(vae.config.shift_factor)
        self.scale = float(vae.config.scaling_factor)

    @torch.no_grad()
    def encode(self, pixels: Tensor) -> Tensor:
        """Encode images without sampling.

        Args:
            pixels: `[B, 3, H, W]`, in [-1, 1].

        Returns:
            `[B, C, h, w]`, float32: ``(mode - shift) * scale``.
        """
        mode = self.vae.encode(pixels.to(self.vae.device, self.vae.dtype)).latent_dist.mode()
        return (mode.float() - self.shift) * self.scale

    @torch.no_grad()
    def decode(self, latents: Tensor) -> Tensor:
        """Undo `encode`.

        Args:
            latents: `[B, C, h, w]`.

        Returns:
            `[B, 3, H, W]`, float32, in [-1, 1].
        """
        raw = latents.to(self.vae.device).float() / self.scale + self.shift
        return self.vae.decode(raw.to(self.vae.dtype), return_dict=False)[0].float().clamp(-1, 1)


class FluxEncoders:
    """Text and image encoders.

    Args:
        tokenizer: CLIP's tokenizer.
        text_encoder: transformers' ``CLIPTextModel``.
        tokenizer_2: T5's tokenizer.
        text_encoder_2: transformers' ``T5EncoderModel``.
        vae: The image encoder.
        variant: ``generate`` or ``edit``.
        text_length: Number of T5 tokens; shorter captions are padded, longer ones cut off.
    """

    def __init__(
        self,
        tokenizer: Any,
        text_encoder: Any,
        tokenizer_2: Any,
        text_encoder_2: Any,
        vae: FluxVae,
        variant: str,
        text_length: int,
    ) -> None:
        self.tokenizer = tokenizer
        self.text_encoder = text_encoder
        self.tokenizer_2 = tokenizer_2
        self.text_encoder_2 = text_encoder_2
        self.vae = vae
        self.variant = variant
        self.text_length = text_length

    def encode_image(self, pixels: Tensor) -> Tensor:
        """Images `[B, 3, H, W]` in [-1, 1] to normalised latents `[B, C, h, w]`, float32."""
        return self.vae.encode(pixels)

    @torch.no_grad()
    def encode_text(self, caption: str, controls: Sequence[Image] = ()) -> Conditioning:
        """Encode a caption.

        Args:
            caption: The caption or instruction; may be empty.
            controls: The control image of the edit variant; the text encoders do not see it.

        Returns:
            ``text_embeddings`` `[L, D]` of T5 and ``pooled_text`` `[P]` of CLIP, float32. The
            denoiser attends to the padding as well, as it did when it was trained.

        Raises:
            DatasetError: When the number of control images does not fit the variant.
        """
        wanted = 0 if self.variant == "generate" else 1
        if len(controls) != wanted:
            raise DatasetError(
                f"{len(controls)} control pictures for the caption {caption[:60]!r}",
                f"{wanted}, as the base's variant is {self.variant}",
                "Correct the control pictures, or base.variant.",
            )
        pooled = self.text_encoder(
            self._ids(self.tokenizer, caption, self.tokenizer.model_max_length)
        ).pooler_output[0]
        text = self.text_encoder_2(self._ids(self.tokenizer_2, caption, self.text_length))[0][0]
        return {"text_embeddings": text.float(), "pooled_text": pooled.float()}

    def _ids(self, tokenizer: Any, caption: str, length: int) -> Tensor:
        tokens = tokenizer(
            caption, padding="max_length", max_length=length, truncation=True, return_tensors="pt"
        )
        return tokens.input_ids.to(self.text_encoder.device)


def load_encoders(
    location: BaseLocation, dtype: torch.dtype, device: torch.device | str
) -> FluxEncoders:
    """Load what encodes captions and images.

    Args:
        location: The base.
        dtype: Of the weights of text encoders and VAE.
        device: Where they compute.

    Returns:
        Encoders for the base's variant.
    """

    def encoder(kind: str, part: str) -> Any:
        return load_frozen(f"transformers.{kind}", location.encoders, part, dtype, device)

    def tokenizer(part: str) -> Any:
        return load_words("AutoTokenizer", location.encoders, part)

    return FluxEncoders(
        tokenizer=tokenizer("tokenizer"),
        text_encoder=encoder("CLIPTextModel", "text_encoder"),
        tokenizer_2=tokenizer("tokenizer_2"),
        text_encoder_2=encoder("T5EncoderModel", "text_encoder_2"),
        vae=_load_vae(location, dtype, device),
        variant=location.variant,
        text_length=location.text_length,
    )


def load_token_counter(location: BaseLocation) -> CountTokens:
    """`Family.load_token_counter`: T5's tokens with its end token.

    CLIP reads the first 75 of its own whatever the length is, for the pooled text alone.
    """
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(
        location.encoders / "tokenizer_2", local_files_only=True
    )
    return lambda caption, pictures: len(tokenizer(caption, verbose=False).input_ids)


def load_decoder(
    location: BaseLocation, dtype: torch.dtype, device: torch.device | str
) -> Callable[[Tensor], Tensor]:
    """`Family.load_decoder`: latents `[B, C, h, w]` to pixels `[B, 3, H, W]` in [-1, 1]."""
    return _load_vae(location, dtype, device).decode


def _load_vae(location: BaseLocation, dtype: torch.dtype, device: torch.device | str) -> FluxVae:
    with reading_part(location.encoders / "vae"):
        vae = load_frozen("diffusers.AutoencoderKL", location.encoders, "vae", dtype, device)
        return FluxVae(vae)
