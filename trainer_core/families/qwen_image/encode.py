"""Captions and images of Qwen-Image as tensors, and latents as images."""

from __future__ import annotations

import inspect
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

_SYSTEM = "<|im_start|>system\n"
_USER = "<|im_end|>\n<|im_start|>user\n"
_END = "<|im_end|>\n<|im_start|>assistant\n"
_DESCRIBE = (
    "Describe the image by detailing the color, shape, size, texture, quantity, text, spatial "
    "relationships of the objects and background:"
)
_EDIT = (
    "Describe the key features of the input image (color, shape, size, texture, objects, "
    "background), then explain how the user's text instruction should alter or modify the image. "
    "Generate a new image that meets the user's requirements while maintaining consistency with "
    "the original input where appropriate."
)
IMAGE = "<|image_pad|>"
# Tokens up to and with "user\n"; the denoiser never saw what the encoder makes of them.
_PREFIX = {"generate": 34, "edit": 64, "edit_plus": 64}
# Edit-Plus shows the text encoder its images at this area, whatever the VAE gets.
_SEEN_AREA = 384 * 384


def latent_shape(location: BaseLocation, width: int, height: int) -> tuple[int, int, int]:
    """`Family.latent_shape`: ``(C, h, w)`` of an image, with even h and w."""
    config = read_json(location.encoders / "vae" / "config.json")
    with reading_part(location.encoders / "vae"):
        patch = 2 * 2 ** len(config.get("temperal_downsample", (False, True, True)))
        return int(config.get("z_dim", 16)), 2 * (height // patch), 2 * (width // patch)


def prompt_text(variant: str, caption: str, counts: Sequence[int]) -> str:
    """What the text encoder reads.

    Args:
        variant: ``generate``, ``edit`` or ``edit_plus``.
        caption: The caption or instruction.
        counts: Number of image tokens of each control image.

    Returns:
        The chat template of the variant, filled in.
    """
    if variant == "generate":
        return f"{_SYSTEM}{_DESCRIBE}{_USER}{caption}{_END}"
    shown = ""
    for index, count in enumerate(counts):
        title = f"Picture {index + 1}: " if variant == "edit_plus" else ""
        shown += f"{title}<|vision_start|>{IMAGE * count}<|vision_end|>"
    return f"{_SYSTEM}{_EDIT}{_USER}{shown}{caption}{_END}"


class QwenVae:
    """The image encoder and decoder, in the normalised space of the denoiser.

    Args:
        vae: Diffusers' ``AutoencoderKLQwenImage``.
    """

    def __init__(self, vae: Any) -> None:
        self.vae = vae
        shape = (1, -1, 1, 1)
        self.mean = torch.tensor(vae.config.latents_mean).view(shape).to(vae.device)
        self.std = torch.tensor(vae.config.latents_std).view(shape).to(vae.device)

    @torch.no_grad()
    def encode(self, pixels: Tensor) -> Tensor:
        """Encode images without sampling.

        Args:
            pixels: `[B, 3, H, W]`, in [-1, 1].

        Returns:
            `[B, C, h, w]`, float32: ``(mode - mean) / std``.
        """
        frames = pixels.to(self.vae.device, self.vae.dtype).unsqueeze(2)
        mode = self.vae.encode(frames).latent_dist.mode()[:, :, 0]
        return (mode.float() - self.mean) / self.std

    @torch.no_grad()
    def decode(self, latents: Tensor) -> Tensor:
        """Undo `encode`.

        Args:
            latents: `[B, C, h, w]`.

        Returns:
            `[B, 3, H, W]`, float32, in [-1, 1].
        """
        # Divided by the inverse, as the pipeline does it, so that the images are the same bits.
        raw = latents.to(self.vae.device).float() / (1.0 / self.std) + self.mean
        pixels = self.vae.decode(raw.to(self.vae.dtype).unsqueeze(2), return_dict=False)[0]
        return pixels[:, :, 0].float().clamp(-1, 1)


class QwenEncoders:
    """Text and image encoders of one variant.

    Args:
        tokenizer: The base's tokenizer.
        text_encoder: transformers' ``Qwen2_5_VLForConditionalGeneration``.
        vae: The image encoder.
        image_processor: Prepares images for the text encoder; only the edit variants need it.
        variant: ``generate``, ``edit`` or ``edit_plus``.
        text_length: Most text tokens behind the template's prefix; tokens of images come on top.
    """

    def __init__(
        self,
        tokenizer: Any,
        text_encoder: Any,
        vae: QwenVae,
        image_processor: Any,
        variant: str,
        text_length: int,
    ) -> None:
        self.tokenizer = tokenizer
        self.text_encoder = text_encoder
        self.vae = vae
        self.image_processor = image_processor
        self.variant = variant
        self.text_length = text_length

    def encode_image(self, pixels: Tensor) -> Tensor:
        """Images `[B, 3, H, W]` in [-1, 1] to normalised latents `[B, C, h, w]`, float32."""
        return self.vae.encode(pixels)

    @torch.no_grad()
    def encode_text(self, caption: str, controls: Sequence[Image] = ()) -> Conditioning:
        """Encode a caption, for edit variants together with its control images.

        Args:
            caption: The caption or instruction; may be empty.
            controls: The control images, RGB and upright.

        Returns:
            ``text_embeddings`` `[L, D]`, float32, without the template's prefix.

        Raises:
            DatasetError: When the number of images does not fit the variant, or the caption has
                the token that stands for an image.
        """
        self._check(caption, controls)
        pictures, counts = self._prepare(controls)
        text = prompt_text(self.variant, caption, counts)
        prefix = _PREFIX[self.variant]
        ids = self.tokenizer(text, return_tensors="pt").input_ids
        ids = ids[:, : self._longest(ids[0], prefix + self.text_length + sum(counts))]
        device = self.text_encoder.device
        # The model without its word predictor, whose logits nobody needs.
        output = self.text_encoder.model(
            input_ids=ids.to(device),
            attention_mask=torch.ones_like(ids).to(device),
            **{name: value.to(device) for name, value in pictures.items()},
            **self._picture_places(ids, bool(pictures)),
        )
        return {"text_embeddings": output.last_hidden_state[0, prefix:].float()}

    def _picture_places(self, ids: Tensor, shown: bool) -> dict[str, Tensor]:
        """Where the image tokens are, for versions of transformers that have to be told.

        Without it transformers 5 numbers the tokens of an image one after another, instead of by
        row and column as the model was trained, as transformers 4 did and as ComfyUI does. The edit
        pipelines of Diffusers up to 0.42 forget it (its issue 14194).
        """
        forward = inspect.signature(self.text_encoder.model.forward)
        if not shown or "mm_token_type_ids" not in forward.parameters:
            return {}
        token = self.tokenizer.convert_tokens_to_ids(IMAGE)
        return {"mm_token_type_ids": (ids == token).int().to(self.text_encoder.device)}

    def _longest(self, ids: Tensor, wanted: int) -> int:
        # An image is never cut: its features and its tokens have to be equally many.
        token = self.tokenizer.convert_tokens_to_ids(IMAGE)
        places = (ids == token).nonzero()
        return wanted if self.variant == "generate" else max(wanted, int(places[-1]) + 2)

    def _prepare(self, controls: Sequence[Image]) -> tuple[dict[str, Tensor], list[int]]:
        if self.variant == "generate":
            return {}, []
        shown = list(controls)
        if self.variant == "edit_plus":
            shown = [_resize(picture) for picture in controls]
        prepared = self.image_processor(images=shown, return_tensors="pt")
        grid = prepared["image_grid_thw"]
        counts = (grid.prod(dim=1) // self.image_processor.merge_size**2).tolist()
        return {"pixel_values": prepared["pixel_values"], "image_grid_thw": grid}, counts

    def _check(self, caption: str, controls: Sequence[Image]) -> None:
        wanted = {"generate": "no", "edit": "one", "edit_plus": "at least one"}[self.variant]
        fits = {
            "generate": not controls,
            "edit": len(controls) == 1,
            "edit_plus": len(controls) > 0,
        }
        if not fits[self.variant]:
            raise DatasetError(
                f"{len(controls)} control pictures for the caption {caption[:60]!r}",
                f"{wanted} control picture, as the base's variant is {self.variant}",
                "Set base.variant to edit for one and edit_plus for several, or correct the "
                "control pictures.",
            )
        if self.variant != "generate" and IMAGE in caption:
            raise DatasetError(
                f"the caption {caption[:60]!r} has {IMAGE}",
                "a caption without the token that stands for a picture",
                "Take it out; the control pictures are put in by the trainer.",
            )


def load_encoders(
    location: BaseLocation, dtype: torch.dtype, device: torch.device | str
) -> QwenEncoders:
    """Load what encodes captions and images.

    Args:
        location: The base.
        dtype: Of the weights of text encoder and VAE.
        device: Where they compute.

    Returns:
        Encoders for the base's variant.
    """
    folder = location.encoders
    kind = "transformers.Qwen2_5_VLForConditionalGeneration"
    image_processor = None
    if location.variant != "generate":
        image_processor = load_words("AutoImageProcessor", folder, "processor")
    return QwenEncoders(
        tokenizer=load_words("AutoTokenizer", folder, "tokenizer"),
        text_encoder=load_frozen(kind, folder, "text_encoder", dtype, device),
        vae=_load_vae(location, dtype, device),
        image_processor=image_processor,
        variant=location.variant,
        text_length=location.text_length,
    )


def load_token_counter(location: BaseLocation) -> CountTokens:
    """`Family.load_token_counter`: tokens behind the template's prefix, without the images'."""
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(
        location.encoders / "tokenizer", local_files_only=True
    )
    variant = location.variant

    def count(caption: str, pictures: int) -> int:
        text = prompt_text(variant, caption, [1] * pictures)
        return len(tokenizer(text, verbose=False).input_ids) - _PREFIX[variant] - pictures

    return count


def load_decoder(
    location: BaseLocation, dtype: torch.dtype, device: torch.device | str
) -> Callable[[Tensor], Tensor]:
    """`Family.load_decoder`: latents `[B, C, h, w]` to pixels `[B, 3, H, W]` in [-1, 1]."""
    return _load_vae(location, dtype, device).decode


def _load_vae(location: BaseLocation, dtype: torch.dtype, device: torch.device | str) -> QwenVae:
    kind = "diffusers.AutoencoderKLQwenImage"
    with reading_part(location.encoders / "vae"):
        return QwenVae(load_frozen(kind, location.encoders, "vae", dtype, device))


def _resize(picture: Image) -> Image:
    from PIL.Image import Resampling

    return picture.resize(area_size(*picture.size, _SEEN_AREA), Resampling.LANCZOS)
