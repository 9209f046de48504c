"""Captions, images and clips of Wan as tensors."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from ...errors import BaseModelError
from ...types import Conditioning
from ...weights.base_location import BaseLocation
from ...weights.diffusers_folder import read_json
from ..diffusers_parts import load_vae as load_vae_of
from ..qwen_vae import qwen_vae
from ..t5_text import T5Encoders, load_t5_counter, load_t5_encoders
from .bases import channels
from .predict import CHANNELS

load_vae = partial(load_vae_of, "diffusers.AutoencoderKLWan", qwen_vae)
load_token_counter = load_t5_counter


@dataclass(slots=True)
class WanEncoders(T5Encoders):
    """As `T5Encoders`; also of frames that a clip begins and ends with."""

    def encode_endpoints(self, first: Tensor, last: Tensor | None, count: int) -> Conditioning:
        """As `ClipEncoders`: a mask of the frames that are given, and latents of these and of grey.

        The first frame stands for four in the mask, as in the latents, the last one for itself.
        """
        pixels = torch.zeros(count, *first.shape)
        for place, frame in ((0, first), (-1, last)):
            if frame is not None:
                pixels[place] = frame.float() / 255.0 * 2.0 - 1.0
        latents = self.vae.encode_frames(pixels)
        mask = latents.new_zeros(4, *latents.shape[1:])
        mask[:, 0] = 1.0
        if last is not None:
            mask[-1, -1] = 1.0
        return {CHANNELS: torch.cat([mask, latents])}


def load_encoders(
    location: BaseLocation, dtype: torch.dtype, device: torch.device | str
) -> WanEncoders:
    """`Family.load_encoders`.

    Raises:
        BaseModelError: When the VAE makes other latents than the denoiser.
    """
    own = read_json(location.encoders / "vae" / "config.json").get("z_dim", 16)
    _, made = channels(location.file, location.denoiser)
    if own != made:
        raise BaseModelError(
            f"the VAE at {location.encoders} makes latents of {own} channels, and the denoiser "
            f"those of {made}",
            "the VAE of the same model: that of Wan 2.2 TI2V-5B has 48 channels, others have 16",
            "Name the Diffusers folder of the base's own model as base.encoders.",
        )
    kind = "transformers.UMT5EncoderModel"
    return load_t5_encoders(kind, "Wan", load_vae, location, dtype, device, WanEncoders)
