"""Qwen-Image on a graph: Qwen2.5-VL of the CLIP, and what its VAE is."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy
import torch
from torch import Tensor
from torch.nn.functional import interpolate

from ..chat_text import count_rows, cut_rows, real_tokens, second_message
from ..family import ClipSpec, GraphModel, GraphSpec, VaeSpec
from .encode import IMAGE, prompt_text

if TYPE_CHECKING:
    from PIL.Image import Image

# ComfyUI's edit nodes show the text encoder its images at these areas.
_SEEN_AREA = {"edit": 1024 * 1024, "edit_plus": 384 * 384}


def prompt(variant: str, caption: str, images: int) -> str:
    """`ClipSpec.prompt`: a text that begins like the template is not put into it again."""
    return prompt_text(variant, caption, [1] * images)


def see(variant: str, image: Image) -> Tensor:
    """`ClipSpec.see`: the image at the area that ComfyUI's edit node gives it."""
    values = torch.from_numpy(numpy.array(image.convert("RGB")).astype(numpy.float32) / 255.0)
    scale = math.sqrt(_SEEN_AREA[variant] / (image.width * image.height))
    size = (round(image.height * scale), round(image.width * scale))
    return interpolate(values.movedim(-1, 0)[None], size=size, mode="area").movedim(1, -1)


def vae_settings(config: Mapping[str, Any]) -> dict[str, Any]:
    """`GraphModel.vae_settings`."""
    names = {"base_dim": "dim"}
    same = ("base_dim", "z_dim", "dim_mult", "num_res_blocks", "attn_scales", "temperal_downsample")
    return {names.get(name, name): config[name] for name in same}


def vae_published(config: Mapping[str, Any]) -> dict[str, Any]:
    """`GraphModel.vae_published`: the width alone is read from a file."""
    published = {"z_dim": 16, "dim_mult": [1, 2, 4, 4], "num_res_blocks": 2}
    return vae_settings({**config, **published})


_VAE_PARTS = {
    "mid_block.resnets.0.": "middle.0.",
    "mid_block.attentions.0.": "middle.1.",
    "mid_block.resnets.1.": "middle.2.",
    "conv_in.": "conv1.",
    "norm_out.": "head.0.",
    "conv_out.": "head.2.",
    "down_blocks.": "downsamples.",
    "up_blocks.": "upsamples.",
}
_VAE_LAYERS = {
    ".norm1.": ".residual.0.",
    ".conv1.": ".residual.2.",
    ".norm2.": ".residual.3.",
    ".conv2.": ".residual.6.",
    ".conv_shortcut.": ".shortcut.",
}
_UP_BLOCK = re.compile(r"(?<=up_blocks\.)(\d+)\.(resnets|upsamplers)\.(\d+)")


def vae_name(name: str, config: Mapping[str, Any]) -> str:
    """`GraphModel.vae_name`: Diffusers' names to those of Wan 2.1, whose class it is."""
    side, _, rest = name.partition(".")
    if not side.endswith("coder"):
        return f"{'conv1' if side == 'quant_conv' else 'conv2'}.{rest}"
    # A block of the decoder is so many residual blocks and, but for the last, what enlarges.
    residual = config["num_res_blocks"] + 1

    def place(found: re.Match[str]) -> str:
        inside = int(found[3]) if found[2] == "resnets" else residual
        return str(int(found[1]) * (residual + 1) + inside)

    rest = _UP_BLOCK.sub(place, rest)
    for old, new in _VAE_LAYERS.items():
        rest = rest.replace(old, new)
    for old, new in _VAE_PARTS.items():
        rest = new + rest.removeprefix(old) if rest.startswith(old) else rest
    return f"{side}.{rest}"


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
        read=partial(cut_rows, start=second_message),
        count=partial(count_rows, start=second_message),
        conditioning=real_tokens,
    ),
    vae=VaeSpec(
        marker="decoder.conv1.weight",
        dimensions=5,
        channels=16,
        # Source: ComfyUI, comfy.latent_formats.Wan21; the same in the base's vae/config.json.
        mean=(
            *(-0.7571, -0.7089, -0.9113, 0.1075, -0.1745, 0.9653, -0.1517, 1.5508),
            *(0.4134, -0.0715, 0.5517, -0.3632, -0.1922, -0.9497, 0.2503, -0.2921),
        ),
        deviation=(
            *(2.8184, 1.4541, 2.3275, 2.6558, 1.2196, 1.7708, 2.6052, 2.0743),
            *(3.2687, 2.1526, 2.8652, 1.5579, 1.6382, 1.1253, 2.8251, 1.9160),
        ),
        title="the VAE of Qwen-Image",
        remedy="Use Load VAE with qwen_image_vae.safetensors.",
    ),
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
