"""Captions and images of Qwen-Image as tensors, and latents as images."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from ...data.captions.length import CountTokens
from ...errors import DatasetError
from ...types import Conditioning
from ...weights.base_location import BaseLocation
from ...weights.loading import load_frozen, load_words
from ..chat_text import image_places, refuse_image_token, text_batch
from ..diffusers_parts import Vae, area_size, load_tokens
from ..qwen_vae import load_vae

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
_PREFIX = {"generate": 34, "layered": 34, "edit": 64, "edit_plus": 64}
SHOWS_IMAGES = frozenset({"edit", "edit_plus"})
"""Variants whose text encoder sees the control images."""

WITHOUT_IMAGES = {"edit": "generate"}
"""The variant whose text a caption without its control images has, where that is another.

So it is in ComfyUI's nodes: that of Edit changes the template, that of Edit-Plus, and Diffusers'
pipeline, leave the images out of it.
"""

# Edit-Plus shows the text encoder its images at this area, whatever the VAE gets.
_SEEN_AREA = 384 * 384


def prompt_text(variant: str, caption: str, counts: Sequence[int]) -> str:
    """What the text encoder reads: the chat template of the variant, filled in.

    `counts` are numbers of image tokens, of each control image.
    """
    if variant not in SHOWS_IMAGES:
        return f"{_SYSTEM}{_DESCRIBE}{_USER}{caption}{_END}"
    shown = ""
    for index, count in enumerate(counts):
        title = f"Picture {index + 1}: " if variant == "edit_plus" else ""
        shown += f"{title}<|vision_start|>{IMAGE * count}<|vision_end|>"
    return f"{_SYSTEM}{_EDIT}{_USER}{shown}{caption}{_END}"


@dataclass(slots=True)
class QwenEncoders:
    """Text and image encoders of one variant.

    Attributes:
        tokenizer: The base's tokenizer.
        text_encoder: transformers' ``Qwen2_5_VLForConditionalGeneration``.
        vae: The image encoder.
        image_processor: Prepares images for the text encoder; only the edit variants need it.
        variant: ``generate``, ``edit``, ``edit_plus`` or ``layered``.
        text_length: Most text tokens behind the template's prefix; tokens of images come on top.
    """

    tokenizer: Any
    text_encoder: Any
    vae: Vae
    image_processor: Any
    variant: str
    text_length: int

    @property
    def text_models(self) -> tuple[Any, ...]:
        """The model without its word predictor, whose logits nobody needs."""
        return (self.text_encoder.model,)

    def encode_image(self, pixels: Tensor) -> Tensor:
        """Images `[B, 3, H, W]` in [-1, 1] to normalised latents `[B, C, h, w]`, float32.

        The variant with layers takes pixels with alpha, `[B, 4, H, W]`.
        """
        return self.vae.encode(pixels)

    @torch.no_grad()
    def encode_text(self, caption: str, controls: Sequence[Image] = ()) -> Conditioning:
        """Encode a caption, for edit variants together with its control images.

        The caption may be empty; images are RGB and upright. Edit variants also encode a caption
        without any, for a denoiser that is given none (`WITHOUT_IMAGES`). ``text_embeddings`` `[L,
        D]`, float32, without the template's prefix.

        Raises:
            DatasetError: When the number of images does not fit the variant, or the caption has
                the token that stands for an image.
        """
        self._check(caption, controls)
        images, counts = self._prepare(controls)
        variant = self.variant if counts else WITHOUT_IMAGES.get(self.variant, self.variant)
        text = prompt_text(variant, caption, counts)
        prefix = _PREFIX[variant]
        ids = self.tokenizer(text, return_tensors="pt").input_ids
        ids = ids[:, : self._longest(ids[0], prefix + self.text_length + sum(counts))]
        device = self.text_encoder.device
        (model,) = self.text_models
        output = model(
            input_ids=ids.to(device),
            attention_mask=torch.ones_like(ids).to(device),
            **{name: value.to(device) for name, value in images.items()},
            **self._image_places(ids, bool(images)),
        )
        return {"text_embeddings": output.last_hidden_state[0, prefix:].float()}

    @torch.no_grad()
    def encode_texts(
        self, captions: Sequence[str], controls: Sequence[Sequence[Image]]
    ) -> list[Conditioning]:
        """As `encode_text` of each: in one pass where no image is shown, else one by one."""
        pairs = list(zip(captions, controls, strict=True))
        if self.variant in SHOWS_IMAGES and any(controls):
            return [self.encode_text(*each) for each in pairs]
        for each in pairs:
            self._check(*each)
        variant = WITHOUT_IMAGES.get(self.variant, self.variant)
        prefix = _PREFIX[variant]
        words = self.tokenizer([prompt_text(variant, caption, ()) for caption in captions])
        ids = [row[: prefix + self.text_length] for row in words.input_ids]
        (model,) = self.text_models
        output = model(**text_batch(ids, self.text_encoder.device))
        return [
            {"text_embeddings": rows[prefix : len(own)].float()}
            for rows, own in zip(output.last_hidden_state, ids, strict=True)
        ]

    def _image_places(self, ids: Tensor, shown: bool) -> dict[str, Tensor]:
        """`image_places`, which the edit pipelines of Diffusers up to 0.42 forget (issue 14194)."""
        if not shown:
            return {}
        token = self.tokenizer.convert_tokens_to_ids(IMAGE)
        return image_places(self.text_encoder.model, (ids == token).to(self.text_encoder.device))

    def _longest(self, ids: Tensor, wanted: int) -> int:
        # An image is never cut: its features and its tokens have to be equally many.
        token = self.tokenizer.convert_tokens_to_ids(IMAGE)
        places = (ids == token).nonzero()
        return max(wanted, int(places[-1]) + 2) if len(places) else wanted

    def _prepare(self, controls: Sequence[Image]) -> tuple[dict[str, Tensor], list[int]]:
        if self.variant not in SHOWS_IMAGES or not controls:
            return {}, []
        shown = list(controls)
        if self.variant == "edit_plus":
            shown = [_resize(image) for image in controls]
        prepared = self.image_processor(images=shown, return_tensors="pt")
        grid = prepared["image_grid_thw"]
        counts = (grid.prod(dim=1) // self.image_processor.merge_size**2).tolist()
        return {"pixel_values": prepared["pixel_values"], "image_grid_thw": grid}, counts

    def _check(self, caption: str, controls: Sequence[Image]) -> None:
        wanted, fits = {
            "generate": ("no", not controls),
            "edit": ("at most one", len(controls) <= 1),
            "layered": ("one", len(controls) == 1),
            "edit_plus": ("any", True),
        }[self.variant]
        if not fits:
            raise DatasetError(
                f"{len(controls)} control images for the caption {caption[:60]!r}",
                f"{wanted} control image, as the base's variant is {self.variant}",
                "Set base.variant to edit for one and edit_plus for several, or correct the "
                "control images.",
            )
        if self.variant in SHOWS_IMAGES:
            refuse_image_token(caption, IMAGE)


def load_encoders(
    location: BaseLocation, dtype: torch.dtype, device: torch.device | str
) -> QwenEncoders:
    """`Family.load_encoders`, for the base's variant."""
    folder, edits = location.encoders, location.variant in SHOWS_IMAGES
    kind = "transformers.Qwen2_5_VLForConditionalGeneration"
    return QwenEncoders(
        tokenizer=load_words("AutoTokenizer", folder, "tokenizer"),
        text_encoder=load_frozen(kind, folder, "text_encoder", dtype=dtype, device=device),
        vae=load_vae(location, dtype, device),
        image_processor=load_words("AutoImageProcessor", folder, "processor") if edits else None,
        variant=location.variant,
        text_length=location.text_length,
    )


def load_token_counter(location: BaseLocation) -> CountTokens:
    """`TextSpec.load_token_counter`: tokens behind the template's prefix, without the images'."""
    tokens, variant = load_tokens(location, "tokenizer"), location.variant

    def count(caption: str, images: int) -> int:
        shown = images if variant in SHOWS_IMAGES else 0
        return tokens(prompt_text(variant, caption, [1] * shown)) - _PREFIX[variant] - shown

    return count


def _resize(image: Image) -> Image:
    from PIL.Image import Resampling

    return image.resize(area_size(*image.size, _SEEN_AREA), Resampling.LANCZOS)
