"""Qwen-Image on a graph: Qwen2.5-VL of the CLIP, and what its VAE is."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy
import torch
from torch import Tensor
from torch.nn.functional import interpolate

from ...types import Conditioning
from ..family import ClipSpec, GraphModel, GraphSpec, Row
from ..qwen_vae import VAE, vae_name, vae_published, vae_settings
from .encode import IMAGE, prompt_text

if TYPE_CHECKING:
    from PIL.Image import Image

# ComfyUI's edit nodes show the text encoder its images at these areas.
_SEEN_AREA = {"edit": 1024 * 1024, "edit_plus": 384 * 384}
_MESSAGE_START = 151644
_MESSAGE_HEAD = 3  # "<|im_start|>user\n"


def prompt(variant: str, caption: str, images: int) -> str:
    """`ClipSpec.prompt`: a text that begins like the template is not put into it again."""
    return prompt_text(variant, caption, [1] * images)


def read(
    rows: Mapping[str, Sequence[Row]], text_length: int | None, images: int
) -> dict[str, list[Row]]:
    """`ClipSpec.read`: at most ``text_length`` tokens behind the template's prefix, images apart.

    Unset, nothing is cut, as in ComfyUI. The template's end counts.
    """
    if text_length is None:
        return {name: list(each) for name, each in rows.items()}
    return {
        name: [row[: _longest(row, text_length, images)] for row in each]
        for name, each in rows.items()
    }


def _longest(row: Row, text_length: int, images: int) -> int:
    wanted = _message_start(row) + text_length + images
    # An image is never cut off, nor the token that closes it.
    places = [place for place, entry in enumerate(row) if isinstance(entry[0], dict)]
    return max(wanted, places[-1] + 2) if places else wanted


def _message_start(row: Row) -> int:
    starts = [place for place, entry in enumerate(row) if entry[0] == _MESSAGE_START]
    return starts[1] + _MESSAGE_HEAD


def count(rows: Mapping[str, Sequence[Row]]) -> int:
    """`ClipSpec.count`."""
    return max(len(row) - _message_start(row) for each in rows.values() for row in each)


def conditioning(text: Tensor, extra: Mapping[str, Any]) -> Conditioning:
    """`ClipSpec.conditioning`: ``text_embeddings`` `[L, D]` without the template's prefix."""
    mask = extra.get("attention_mask")
    # Only there when the caption itself has the end token, behind which nothing counts.
    return {"text_embeddings": text if mask is None else text[mask[0].bool().to(text.device)]}


def see(variant: str, image: Image) -> Tensor:
    """`ClipSpec.see`: the image at the area that ComfyUI's edit node gives it."""
    values = torch.from_numpy(numpy.array(image.convert("RGB")).astype(numpy.float32) / 255.0)
    scale = math.sqrt(_SEEN_AREA[variant] / (image.width * image.height))
    size = (round(image.height * scale), round(image.width * scale))
    return interpolate(values.movedim(-1, 0)[None], size=size, mode="area").movedim(1, -1)


GRAPH = GraphSpec(
    controls={"generate": (0, 0), "edit": (1, 1), "edit_plus": (1, 64)},
    clip=ClipSpec(
        parts=("qwen25_7b",),
        templates={
            "llama_template": prompt_text("generate", "{}", ()),
            "llama_template_images": prompt_text("edit", "{}", (1,)),
        },
        title="the CLIP of Qwen-Image: qwen_2.5_vl_7b, loaded as type qwen_image",
        remedy="Use Load CLIP, type qwen_image, with qwen_2.5_vl_7b.",
        prompt=prompt,
        see=see,
        image_token=IMAGE,
        read=read,
        count=count,
        conditioning=conditioning,
    ),
    vae=VAE,
    model=GraphModel(
        model="comfy.supported_models.QwenImage",
        settings=(
            *("patch_size", "in_channels", "out_channels", "num_layers", "attention_head_dim"),
            *("num_attention_heads", "joint_attention_dim", "axes_dims_rope"),
        ),
        vae="comfy.ldm.wan.vae.WanVAE",
        vae_settings=vae_settings,
        vae_published=vae_published,
        vae_name=vae_name,
    ),
)
