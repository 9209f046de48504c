"""Captions, images and clips of Wan as tensors."""

from __future__ import annotations

import re
from functools import partial
from pathlib import Path

import torch

from ...config import BaseSection
from ...errors import BaseModelError
from ...weights.base_location import BaseLocation
from ...weights.base_path import base_file
from ...weights.diffusers_folder import read_json
from ...weights.header import open_weights
from ..diffusers_parts import load_vae as load_vae_of
from ..qwen_vae import qwen_vae
from ..t5_text import T5Encoders, load_t5_counter, load_t5_encoders
from .keys import OF_5B, channels_of

load_vae = partial(load_vae_of, "diffusers.AutoencoderKLWan", qwen_vae)
load_token_counter = load_t5_counter

_RATE_OF_5B = 24.0
_NAME_OF_5B = re.compile(r"(?<![a-z0-9])5b(?![a-z0-9])")


def clip_rate(base: BaseSection) -> float | None:
    """`LatentSpec.clip_rate`: TI2V-5B is known by its channels, on the hub by its name."""
    file, folder = base_file(base.path), Path(base.path).expanduser()
    if file is not None or folder.is_dir():
        is_5b = _channels(file, folder) == OF_5B
    else:
        is_5b = _NAME_OF_5B.search(base.path.lower()) is not None
    return _RATE_OF_5B if is_5b else None


def _channels(file: Path | None, folder: Path) -> int:
    if file is not None:
        return channels_of(open_weights(file))
    return read_json(folder / "transformer" / "config.json").get("in_channels", 16)


def load_encoders(
    location: BaseLocation, dtype: torch.dtype, device: torch.device | str
) -> T5Encoders:
    """`Family.load_encoders`.

    Raises:
        BaseModelError: When the VAE makes other latents than the denoiser reads.
    """
    made = read_json(location.encoders / "vae" / "config.json").get("z_dim", 16)
    read = _channels(location.file, location.folder)
    if made != read:
        raise BaseModelError(
            f"the VAE at {location.encoders} makes latents of {made} channels, and the denoiser "
            f"reads {read}",
            "the VAE of the same model: that of Wan 2.1 has 16, that of Wan 2.2 TI2V-5B has 48",
            "Name the Diffusers folder of the base's own model as base.encoders.",
        )
    kind = "transformers.UMT5EncoderModel"
    return load_t5_encoders(kind, "Wan", load_vae, location, dtype, device)
