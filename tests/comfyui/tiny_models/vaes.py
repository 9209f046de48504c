"""Small VAEs of ComfyUI's own classes; ComfyUI's interpreter imports this."""

from __future__ import annotations

import functools
import json

import comfy.clip_vision
import comfy.ldm.genmo.vae.model
import comfy.ldm.hunyuan_video.vae_refiner
import comfy.ldm.lightricks.vae.causal_video_autoencoder as lightricks
import comfy.ldm.minimax.audio_vae
import comfy.ldm.minimax.vae
import comfy.ldm.wan.vae
import comfy.ldm.wan.vae2_2
import comfy.sd
import torch
from comfy.ldm.lightricks.vae.audio_vae import AudioVAE
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


def _ltx_audio():
    """The VAE of LTX-2's sound, which makes 25 latents a second."""
    sizes = {
        "double_z": True,
        "mel_bins": 64,
        "z_channels": 8,
        "resolution": 256,
        "downsample_time": False,
        "in_channels": 2,
        "out_ch": 2,
        "ch": 8,
        "ch_mult": [1, 1, 1],
        "num_res_blocks": 1,
        "attn_resolutions": [],
        "dropout": 0.0,
        "mid_block_add_attention": False,
        "norm_type": "pixel",
        "causality_axis": "height",
    }
    stft = {"filter_length": 1024, "hop_length": 160}
    config = {
        "audio_vae": {
            "model": {"params": {"ddconfig": sizes, "sampling_rate": 16000}},
            "preprocessing": {"stft": stft},
        },
        "vocoder": {"upsample_initial_channel": 32, "resblock": "1"},
    }
    metadata = {"config": json.dumps(config)}
    state = AudioVAE(metadata=metadata).state_dict()
    state = {name.replace("autoencoder.", "audio_vae."): each for name, each in state.items()}
    return comfy.sd.VAE(state, metadata=metadata, dtype=torch.float32)


def _wan22():
    """Wan 2.2's, whose width ComfyUI knows."""
    module = comfy.ldm.wan.vae2_2
    sizes = {"dim": 8, "dec_dim": 8, "z_dim": 48, "temperal_downsample": [False, True, True]}
    state = module.WanVAE(**sizes).state_dict()
    return _narrow(module, {"WanVAE": {"dim": 8, "dec_dim": 8}}, state)


def _hunyuan15():
    """HunyuanVideo 1.5's, whose widths ComfyUI knows."""
    module = comfy.ldm.hunyuan_video.vae_refiner
    sizes = {"block_out_channels": [16, 16, 32, 32, 64], "num_res_blocks": 1}
    rest = {"ffactor_spatial": 16, "ffactor_temporal": 4, "z_channels": 32}
    state = {}
    for name, kind in (("encoder", module.Encoder), ("decoder", module.Decoder)):
        made = kind(in_channels=3, out_channels=3, **sizes, **rest).state_dict()
        state |= {f"{name}.{key}": value for key, value in made.items()}
    return _narrow(module, dict.fromkeys(("Encoder", "Decoder"), sizes), state)


def _mochi():
    """Mochi's, whose widths ComfyUI knows."""
    module = comfy.ldm.genmo.vae.model
    sizes = {"base_channels": 32, "channel_multipliers": [1, 2, 1, 2]}
    return _narrow(
        module, dict.fromkeys(("Encoder", "Decoder"), sizes), lambda: module.VideoVAE().state_dict()
    )


def _minimax_h3():
    """MiniMax-H3's, whose widths ComfyUI knows."""
    module = comfy.ldm.minimax.vae
    sizes = {
        "EncoderFCN3D": {"ch": 32, "ch_mult": [1, 1, 1, 1, 1, 1], "num_res_blocks": 1},
        "ViT3DDecoder": {"num_layers": 1, "heads": 2, "dim_head": 12},
    }
    return _narrow(module, sizes, lambda: module.MiniMaxH3VideoVAE().state_dict())


def _minimax_h3_audio():
    """The VAE of its sound, which makes 40 latents a second."""
    module = comfy.ldm.minimax.audio_vae
    sizes = {"MiniMaxH3AudioVAE": {"encoder_dim": 2, "latent_dim": 64, "decoder_dim": 128}}
    return _narrow(module, sizes, lambda: module.MiniMaxH3AudioVAE().state_dict())


def _narrow(module, sizes, state):
    """The VAE of a state dict, or of what makes one; classes of the module have other sizes."""
    whole = {name: getattr(module, name) for name in sizes}
    for name, kind in whole.items():
        own = functools.partial(_sized, kind, sizes[name])
        setattr(module, name, own)
    try:
        state = state() if callable(state) else state
        return comfy.sd.VAE(state, dtype=torch.float32)
    finally:
        for name, kind in whole.items():
            setattr(module, name, kind)


def _sized(kind, sizes, **given):
    return kind(**{**given, **sizes})


KINDS = {
    "kl4": lambda: _kl(4),
    "kl16": lambda: _kl(16),
    "kl128": lambda: _kl(32, packed=True),
    "wan": _wan,
    "wan22": _wan22,
    "hunyuan15": _hunyuan15,
    "ltx": _ltx,
    "ltx_audio": _ltx_audio,
    "mochi": _mochi,
    "minimax_h3": _minimax_h3,
    "minimax_h3_audio": _minimax_h3_audio,
}
"""What makes a VAE, by name."""


def tiny_vae(kind: str, seed: int = 0):
    """ComfyUI's VAE with random weights."""
    vae = KINDS[kind]()
    fill(vae.first_stage_model, seed)
    return vae


def tiny_vision(sizes, seed: int = 0):
    """ComfyUI's CLIP_VISION with random weights, of the sizes in `TinySizes.vision`."""
    rest = {"intermediate_size": 64, "num_attention_heads": 2, "num_hidden_layers": 2}
    image = {"image_size": 56, "patch_size": 14, "num_channels": 3}
    acts = {"hidden_act": "gelu", "projection_dim": 16, "layer_norm_eps": 1e-5}
    vision = comfy.clip_vision.ClipVisionModel({**rest, **image, **acts, **sizes})
    vision.model.float()
    vision.dtype = torch.float32
    fill(vision.model, seed)
    return vision
