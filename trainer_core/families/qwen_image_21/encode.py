"""Captions and reference images of Qwen-Image 2.1 as tensors."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from ...data.captions.length import CountTokens
from ...errors import DatasetError
from ...types import Conditioning
from ...weights.base_location import BaseLocation
from ...weights.loading import load_frozen, load_words
from ..chat_text import (
    ChatText,
    dropped_tokens,
    hidden_states,
    image_places,
    refuse_image_token,
    require_controls,
    text_batch,
    text_part,
)
from ..diffusers_parts import Vae, load_tokens
from ..diffusers_parts import load_vae as load_vae_of
from ..qwen_vae import qwen_vae
from .predict import BEFORE_IMAGE

if TYPE_CHECKING:
    from PIL.Image import Image

_SYSTEM = "<|im_start|>system\nComprehend and analyze the provided prompt.<|im_end|>\n"
CHAT = ChatText(
    template=f"{_SYSTEM}<|im_start|>user\n{{}}<|im_end|>\n<|im_start|>assistant\n",
    # Before the final norm, which transformers 5 puts into its own last hidden state.
    states=(-1,),
    dropped=_SYSTEM,
)
IMAGE = "<|image_pad|>"
_SIDE = 32
"""Pixels of an image's side for each of the text encoder's image tokens, two latents."""

_MOST = 16
_CONTROLS = {"generate": (0, 0), "edit_plus": (0, _MOST)}

load_vae = partial(load_vae_of, "diffusers.AutoencoderKLQwenImage21", qwen_vae)


def prompt_text(caption: str, counts: Sequence[int]) -> str:
    """What the text encoder reads; an empty caption is a space, as in the pipeline.

    `counts` are numbers of image tokens, of each reference image.
    """
    shown = " ".join(
        f"<image{number}><|vision_start|>{IMAGE * count}<|vision_end|>"
        for number, count in enumerate(counts, start=1)
    )
    return CHAT.fill(shown + (caption or " "))


@dataclass(slots=True)
class Qwen21Encoders:
    """Text and image encoders of one variant.

    Attributes:
        tokenizer: The base's tokenizer.
        text_encoder: transformers' ``Qwen3VLForConditionalGeneration``.
        vae: The image encoder, of four channels.
        image_processor: Prepares images for the text encoder; only the edit variant needs it.
        variant: ``generate`` or ``edit_plus``.
        text_length: Most text tokens behind the system's message; tokens of images come on top.
    """

    tokenizer: Any
    text_encoder: Any
    vae: Vae
    image_processor: Any
    variant: str
    text_length: int

    @property
    def text_models(self) -> tuple[Any, ...]:
        """The model without its word predictor, and without its eyes where it sees nothing."""
        model = self.text_encoder.model
        return (text_part(model) if self.variant == "generate" else model,)

    def encode_image(self, pixels: Tensor) -> Tensor:
        """Images `[B, 4, H, W]` in [-1, 1] to normalised latents `[B, C, h, w]`, float32."""
        return self.vae.encode(pixels)

    @torch.no_grad()
    def encode_text(self, caption: str, controls: Sequence[Image] = ()) -> Conditioning:
        """Encode a caption, for the edit variant together with its reference images.

        The caption may be empty; images are RGB and upright, of the size that the VAE gets.
        ``text_embeddings`` `[L, D]`, float32, and before it the text before each image
        (`BEFORE_IMAGE`). The rows of the images are left out: the denoiser has their latents there.

        Raises:
            DatasetError: When the number or the size of the images does not fit, or the caption has
                the token that stands for an image.
        """
        require_controls(caption, len(controls), _CONTROLS[self.variant], self.variant)
        _check(caption, controls)
        images, counts = self._prepare(controls)
        words = self.tokenizer(prompt_text(caption, counts), return_tensors="pt").input_ids
        start = dropped_tokens(CHAT, lambda text: len(self.tokenizer(text).input_ids))
        token = self.tokenizer.convert_tokens_to_ids(IMAGE)
        # An image is never cut, nor the token that closes it.
        last = int((words[0] == token).nonzero()[-1]) + 2 if counts else 0
        ids = words[:, : max(start + self.text_length + sum(counts), last)]
        (model,) = self.text_models
        device = next(model.parameters()).device
        inputs = {"input_ids": ids, "attention_mask": torch.ones_like(ids), **images}
        inputs |= image_places(model, ids == token) if images else {}
        on_device = {name: value.to(device) for name, value in inputs.items()}
        (rows,) = hidden_states(model, CHAT.states, on_device)
        return _without_images(rows[0, start:].float(), ids[0, start:] == token, counts)

    @torch.no_grad()
    def encode_texts(
        self, captions: Sequence[str], controls: Sequence[Sequence[Image]]
    ) -> list[Conditioning]:
        """As `encode_text` of each: in one pass where there are no images, else one by one."""
        if any(controls):
            pairs = zip(captions, controls, strict=True)
            return [self.encode_text(caption, shown) for caption, shown in pairs]
        for caption in captions:
            require_controls(caption, 0, _CONTROLS[self.variant], self.variant)
            _check(caption, ())
        start = dropped_tokens(CHAT, lambda text: len(self.tokenizer(text).input_ids))
        words = self.tokenizer([prompt_text(caption, ()) for caption in captions]).input_ids
        ids = [row[: start + self.text_length] for row in words]
        (model,) = self.text_models
        device = next(model.parameters()).device
        (rows,) = hidden_states(model, CHAT.states, text_batch(ids, device))
        return [
            {"text_embeddings": row[start : len(own)].float()}
            for row, own in zip(rows, ids, strict=True)
        ]

    def _prepare(self, controls: Sequence[Image]) -> tuple[dict[str, Tensor], list[int]]:
        if not controls:
            return {}, []
        # Of the size that they have: a slot is four of the VAE's latents.
        prepared = self.image_processor(images=list(controls), return_tensors="pt", do_resize=False)
        grid = prepared["image_grid_thw"]
        counts = (grid.prod(dim=1) // self.image_processor.merge_size**2).tolist()
        return {"pixel_values": prepared["pixel_values"], "image_grid_thw": grid}, counts


def _check(caption: str, controls: Sequence[Image]) -> None:
    refuse_image_token(caption, IMAGE)
    for image in controls:
        if image.width % _SIDE or image.height % _SIDE:
            raise DatasetError(
                f"a control image of {image.width} x {image.height} pixels",
                f"sides that are multiples of {_SIDE}",
                "Set dataset.control_area, or a resolution whose sizes are such multiples.",
            )


def _without_images(rows: Tensor, places: Tensor, counts: Sequence[int]) -> Conditioning:
    """Cut the text `[L, D]` where images ``places`` `[L]` are, each of so many tokens."""
    found: dict[str, Tensor] = {}
    begin = 0
    for number, count in enumerate(counts, start=1):
        first = begin + int(places[begin:].nonzero()[0])
        found[BEFORE_IMAGE.format(number)] = rows[begin:first].clone()
        begin = first + count
    return {**found, "text_embeddings": rows[begin:].clone()}


def load_encoders(
    location: BaseLocation, dtype: torch.dtype, device: torch.device | str
) -> Qwen21Encoders:
    """`Family.load_encoders`, for the base's variant."""
    folder, edits = location.encoders, location.variant != "generate"
    kind = "transformers.Qwen3VLForConditionalGeneration"
    return Qwen21Encoders(
        tokenizer=load_words("AutoTokenizer", folder, "processor"),
        text_encoder=load_frozen(kind, folder, "text_encoder", dtype=dtype, device=device),
        vae=load_vae(location, dtype, device),
        image_processor=load_words("AutoImageProcessor", folder, "processor") if edits else None,
        variant=location.variant,
        text_length=location.text_length,
    )


def load_token_counter(location: BaseLocation) -> CountTokens:
    """`TextSpec.load_token_counter`: tokens behind the system's message, without the images'."""
    tokens = load_tokens(location, "processor")
    start = dropped_tokens(CHAT, tokens)
    return lambda caption, images: tokens(prompt_text(caption, [1] * images)) - start - images
