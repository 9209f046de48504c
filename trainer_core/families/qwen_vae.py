"""The VAE of Qwen-Image, which several families share, in Diffusers and on a graph.

Its class in ComfyUI is that of Wan 2.1's.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import partial
from typing import Any

import torch

from .diffusers_parts import Vae
from .diffusers_parts import load_vae as load_vae_of
from .graph_spec import VaeSpec


def latents(config: Mapping[str, Any]) -> tuple[int, int]:
    """`LatentSpec.of_config`."""
    halvings = len(config.get("temperal_downsample", (False, True, True)))
    return int(config.get("z_dim", 16)), 2**halvings * (config.get("patch_size") or 1)


def qwen_vae(model: Any) -> Vae:
    """The statistics of a VAE: Diffusers' ``AutoencoderKLQwenImage``, with one for each channel."""
    mean, std = (
        torch.tensor(values).view(1, -1, 1, 1)
        for values in (model.config.latents_mean, model.config.latents_std)
    )
    return Vae(
        model,
        normalize=lambda raw: (raw - mean.to(raw.device)) / std.to(raw.device),
        # Divided by the inverse, as the pipeline does it, so that the images are the same bits.
        denormalize=lambda latents: (
            latents / (1.0 / std.to(latents.device)) + mean.to(latents.device)
        ),
        video=True,
    )


load_vae = partial(load_vae_of, "diffusers.AutoencoderKLQwenImage", qwen_vae)


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


VAE = VaeSpec(
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
)
"""Where a graph has to hold it: facts of its weights, and what its latents are."""
