"""Captions, images and clips of Wan as tensors."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from ...errors import BaseModelError
from ...types import Conditioning
from ...weights.base_location import BaseLocation
from ...weights.diffusers_folder import read_json
from ...weights.loading import load_frozen
from ..diffusers_parts import load_vae as load_vae_of
from ..qwen_vae import qwen_vae
from ..t5_text import T5Encoders, load_t5_counter, load_t5_encoders
from .bases import reads
from .predict import CHANNELS, CLEAN, FRAMES, VISION

load_vae = partial(load_vae_of, "diffusers.AutoencoderKLWan", qwen_vae)
load_token_counter = load_t5_counter

_EVERY = 4
"""Frames of a clip for each further frame of its latents."""


@dataclass(frozen=True, slots=True)
class Vision:
    """The vision model that shows a start frame to Wan 2.1.

    Attributes:
        model: transformers' ``CLIPVisionModel``.
        mean: `[3, 1, 1]`, of the pixels that it was trained on.
        deviation: `[3, 1, 1]`.
    """

    model: Any
    mean: Tensor
    deviation: Tensor

    def encode(self, frame: Tensor) -> Tensor:
        """A frame `[3, H, W]`, uint8, to what its last layer but one makes of it, `[L, D]`.

        The whole frame becomes a square, as the model was trained and as ComfyUI does it.
        """
        side = self.model.config.image_size
        pixels = frame.float() / 255.0
        if pixels.shape[1:] != (side, side):
            pixels = nn.functional.interpolate(
                pixels[None], size=(side, side), mode="bicubic", antialias=True
            )[0]
        pixels = (pixels * 255.0).clamp(0, 255).round() / 255.0
        shown = ((pixels - self.mean) / self.deviation)[None]
        output = self.model(
            shown.to(self.model.device, self.model.dtype), output_hidden_states=True
        )
        return output.hidden_states[-2][0].float()


@dataclass(slots=True)
class WanEncoders(T5Encoders):
    """As `T5Encoders`; also of frames that a clip begins and ends with.

    Attributes:
        vision: Of a base that sees these; None of others.
        lays_over: Whether the latents of the first frame take the place of noise.
    """

    vision: Vision | None = None
    lays_over: bool = False

    @torch.no_grad()
    def encode_endpoints(self, first: Tensor, last: Tensor | None, count: int) -> Conditioning:
        """As `ClipEncoders`.

        Of TI2V-5B the latents of the first frame. Else a mask of the frames that are given, and
        latents of these and of grey: the first frame stands for four in the mask, as in the
        latents, the last one for itself. And what a vision model sees of them, of Wan 2.1.
        """
        if self.lays_over:
            clean = torch.zeros((count - 1) // _EVERY + 1)
            clean[0] = 1.0
            return {FRAMES: self.vae.encode_clip(first[None]), CLEAN: clean}
        pixels = torch.zeros(count, *first.shape)
        for place, frame in ((0, first), (-1, last)):
            if frame is not None:
                pixels[place] = frame.float() / 255.0 * 2.0 - 1.0
        latents = self.vae.encode_frames(pixels)
        mask = latents.new_zeros(4, *latents.shape[1:])
        mask[:, 0] = 1.0
        if last is not None:
            mask[-1, -1] = 1.0
        found = {CHANNELS: torch.cat([mask, latents])}
        if self.vision is not None:
            # Small beside the VAE's activations, and with it where that is.
            self.vision.model.to(self.vae.model.device)
            views = [self.vision.encode(each) for each in (first, last) if each is not None]
            found[VISION] = torch.cat(views)
        return found


def load_encoders(
    location: BaseLocation, dtype: torch.dtype, device: torch.device | str
) -> WanEncoders:
    """`Family.load_encoders`; `BaseModelError` for a VAE of other latents than the denoiser's."""
    own = read_json(location.encoders / "vae" / "config.json").get("z_dim", 16)
    denoiser = reads(location.file, location.denoiser)
    if own != denoiser.made:
        raise BaseModelError(
            f"the VAE at {location.encoders} makes latents of {own} channels, and the denoiser "
            f"those of {denoiser.made}",
            "the VAE of the same model: that of Wan 2.2 TI2V-5B has 48 channels, others have 16",
            "Name the Diffusers folder of the base's own model as base.encoders.",
        )
    kind = "transformers.UMT5EncoderModel"
    encoders = load_t5_encoders(
        kind, "Wan", load_vae, location=location, dtype=dtype, device=device, form=WanEncoders
    )
    encoders.lays_over = not denoiser.begins
    if denoiser.vision:
        encoders.vision = _load_vision(location, dtype, device)
    return encoders


def _load_vision(location: BaseLocation, dtype: torch.dtype, device: torch.device | str) -> Vision:
    path = location.encoders / "image_processor" / "preprocessor_config.json"
    mean, deviation = (_of_colors(path, name) for name in ("image_mean", "image_std"))
    kind = "transformers.CLIPVisionModel"
    model = load_frozen(kind, location.encoders, "image_encoder", dtype=dtype, device=device)
    return Vision(model, mean, deviation)


def _of_colors(path: Path, name: str) -> Tensor:
    """What a configuration file says of red, green and blue, `[3, 1, 1]`."""
    found = read_json(path).get(name)
    numbers = found if isinstance(found, list) else []
    if len(numbers) != 3 or not all(isinstance(each, int | float) for each in numbers):
        raise BaseModelError(
            f"{path} says {str(found)[:200]} of {name}",
            "three numbers, of red, green and blue",
            "Download the file again.",
        )
    return torch.tensor(numbers, dtype=torch.float32).view(3, 1, 1)
