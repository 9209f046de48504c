"""Small VAEs of ComfyUI's own classes; ComfyUI's interpreter imports this."""

from __future__ import annotations

import json

import comfy.ldm.lightricks.vae.causal_video_autoencoder as lightricks
import comfy.ldm.wan.vae
import comfy.sd
import torch
from comfy.ldm.models.autoencoder import AutoencoderKL

from .weights import fill


def _kl(channels: int, packed: bool = False):
    """The autoencoder of Stable Diffusion and FLUX, which makes a pixel of 8 x 8.

    Args:
        channels: Of the latents.
        packed: Whether 2 x 2 of them become one, as in FLUX.2.
    """
    sizes = {
        "double_z": True,
        "z_channels": channels,
        "resolution": 256,
        "dropout": 0.0,
        "in_channels": 3,
        "out_ch": 3,
        "ch": 32,
        "ch_mult": [1, 1, 1, 1],
        "num_res_blocks": 1,
        "attn_resolutions": [],
        "batch_norm_latent": packed,
    }
    params = {"ddconfig": sizes, "embed_dim": channels}
    state = AutoencoderKL(**params).state_dict()
    vae = comfy.sd.VAE(state, config={"params": params}, dtype=torch.float32)
    vae.latent_channels = channels
    if packed:
        vae.latent_channels, vae.downscale_ratio, vae.upscale_ratio = 4 * channels, 16, 16
    return vae


def _wan():
    """Wan's, whose width ComfyUI reads from the weights."""
    sizes = {"dim": 4, "z_dim": 16, "temperal_downsample": [False, True, True]}
    model = comfy.ldm.wan.vae.WanVAE(**sizes)
    return comfy.sd.VAE(model.state_dict(), dtype=torch.float32)


def _ltx():
    """LTX-Video's, which makes a pixel of 32 x 32."""
    blocks = [["res_x", 1], *([["compress_all", 1]] * 3), ["res_x", 1]]
    config = {
        "dims": 3,
        "in_channels": 3,
        "out_channels": 3,
        "latent_channels": 128,
        "blocks": blocks,
        "encoder_base_channels": 8,
        "decoder_base_channels": 8,
        "norm_layer": "pixel_norm",
        "patch_size": 4,
        "latent_log_var": "uniform",
    }
    state = lightricks.VideoVAE(config=config).state_dict()
    metadata = {"config": json.dumps({"vae": config})}
    return comfy.sd.VAE(state, dtype=torch.float32, metadata=metadata)


KINDS = {
    "kl4": lambda: _kl(4),
    "kl16": lambda: _kl(16),
    "kl128": lambda: _kl(32, packed=True),
    "wan": _wan,
    "ltx": _ltx,
}
"""What makes a VAE, by name."""


def tiny_vae(kind: str, seed: int = 0):
    """ComfyUI's VAE with random weights.

    Args:
        kind: One of `KINDS`.
        seed: Of the weights.
    """
    vae = KINDS[kind]()
    fill(vae.first_stage_model, seed)
    return vae
