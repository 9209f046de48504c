"""Qwen-Image on a graph: Qwen2.5-VL of the CLIP, and what its VAE is."""

from __future__ import annotations

import math
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

import numpy
import torch
from torch import Tensor
from torch.nn.functional import interpolate

from ..chat_text import count_rows, cut_rows, real_tokens, second_message
from ..graph_spec import ClipSpec, ComfyuiClasses, GraphSpec
from ..qwen_vae import VAE, vae_name, vae_published, vae_settings
from .encode import IMAGE, WITHOUT_IMAGES, prompt_text

if TYPE_CHECKING:
    from PIL.Image import Image

# ComfyUI's edit nodes show the text encoder its images at these areas.
_SEEN_AREA = {"edit": 1024 * 1024, "edit_plus": 384 * 384}


def prompt(variant: str, caption: str, images: int) -> str:
    """`ClipSpec.prompt`: a text that begins like the template is not put into it again."""
    return prompt_text(variant, caption, [1] * images)


def see(variant: str, image: Image) -> Tensor | None:
    """`ClipSpec.see`: the image at the area that ComfyUI's edit node gives it."""
    if variant not in _SEEN_AREA:
        return None
    values = torch.from_numpy(numpy.array(image.convert("RGB")).astype(numpy.float32) / 255.0)
    scale = math.sqrt(_SEEN_AREA[variant] / (image.width * image.height))
    size = (round(image.height * scale), round(image.width * scale))
    return interpolate(values.movedim(-1, 0)[None], size=size, mode="area").movedim(1, -1)


_LAYERED_VAE = replace(
    VAE,
    pixel_channels=4,
    title="the VAE of Qwen-Image-Layered, which reads transparency",
    remedy="Use Load VAE with qwen_image_layered_vae.safetensors.",
)

GRAPH = GraphSpec(
    controls={"generate": (0, 0), "edit": (0, 1), "edit_plus": (0, 64), "layered": (1, 1)},
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
        without_images=WITHOUT_IMAGES,
        read=partial(cut_rows, start=second_message),
        count=partial(count_rows, start=second_message),
        conditioning=real_tokens,
    ),
    vae=VAE,
    shift=lambda location: (
        3.1
    ),  # ModelSamplingAuraFlow of ComfyUI's workflows image_qwen_image and ..._edit
    vaes={"layered": _LAYERED_VAE},
    model=ComfyuiClasses(
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
