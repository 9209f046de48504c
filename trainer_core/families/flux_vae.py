"""FLUX.1's VAE, which other families encode images with too."""

from __future__ import annotations

from functools import partial
from typing import Any

from .diffusers_parts import Vae
from .diffusers_parts import load_vae as load_vae_of
from .graph_spec import VaeSpec


def shifted_vae(model: Any) -> Vae:
    """The statistics of a VAE: Diffusers' ``AutoencoderKL``, with its own shift and scale."""
    shift, scale = float(model.config.shift_factor), float(model.config.scaling_factor)
    return Vae(model, lambda raw: (raw - shift) * scale, lambda latents: latents / scale + shift)


load_vae = partial(load_vae_of, "diffusers.AutoencoderKL", shifted_vae)
"""`LatentSpec.load_vae`."""

VAE = VaeSpec(
    marker="decoder.conv_in.weight",
    dimensions=4,
    channels=16,
    # Source: ComfyUI, comfy.latent_formats.Flux; the same in the bases' vae/config.json.
    mean=(0.1159,),
    deviation=(1 / 0.3611,),
    title="the VAE of FLUX.1",
    remedy="Use Load VAE with ae.safetensors, or the VAE of a FLUX.1 checkpoint.",
)
"""`GraphSpec.vae`."""
