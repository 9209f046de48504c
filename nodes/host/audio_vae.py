"""The VAE of the sound of clips, as ComfyUI loads it for a MODEL that makes video and sound."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ...trainer_core.errors import InputError
from ...trainer_core.families import graph_model_layers
from .clip_and_vae_inputs import require_plain, vae_identity
from .ordinary_tensors import ordinary_copy

if TYPE_CHECKING:
    from torch import Tensor

    from ...trainer_core.families.graph_model_denoiser import LentSound
    from ...trainer_core.types import Sound
    from .graph_model import GraphModel

_SOCKET = "audio_vae"
_LENGTHS = ("num_of_latents_from_frames", "latents_per_second")
"""By the first of which ComfyUI's VAE of sound tells how many latents a clip has.

LTX-2's are `[c, t, b]`, with b bands of frequency, MiniMax-H3's `[c, 2, t]`, of two channels.
"""

_BEHIND = 0.2
"""Seconds of silence that are encoded behind it, as many as of a sound are."""


def require_audio_vae(vae: Any, model: GraphModel, rate: float | None = None) -> None:
    """Refuse what cannot encode the sound of a MODEL.

    Args:
        vae: The audio VAE input's value; None where nothing is connected.
        rate: Frames per second of clips; None for the MODEL's own.

    Raises:
        InputError: When it is not a VAE of sound, or not this MODEL's, or the MODEL makes none;
            when there is none and the MODEL needs one; when sound would not keep up with the
            frames.
    """
    if vae is None and not model.needs_sound:
        return
    if vae is None:
        raise InputError(
            f"nothing at the {_SOCKET} input, and {model.title}",
            "the VAE of its sound: it makes no clip and no image without",
            f"Connect Load VAE with that file to {_SOCKET}.",
        )
    if not graph_model_layers.makes_sound(model.denoiser):
        raise InputError(
            f"a VAE at the {_SOCKET} input, and a MODEL that makes no sound ({model.kind})",
            "a MODEL that makes video and sound, such as LTX-2",
            f"Disconnect {_SOCKET}, or connect such a MODEL.",
        )
    known = [each for each in _LENGTHS if hasattr(vae.first_stage_model, each)][:1]
    if known != [_LENGTHS[1 if model.needs_sound else 0]]:
        loader = "Load VAE with its file" if model.needs_sound else "Load LTXV Audio VAE"
        raise InputError(
            f"{type(vae.first_stage_model).__name__} at the {_SOCKET} input",
            "the VAE that the MODEL's sound is decoded with",
            f"Connect {loader} to {_SOCKET}.",
        )
    require_plain(vae.patcher, _SOCKET)
    if model.needs_sound and rate and model.clips is not None and rate != model.clips.rate:
        raise InputError(
            f"clips of {rate:g} frames a second, and {model.title}",
            f"{model.clips.rate:g}, the rate by which it lays sound beside frames",
            "Leave fps of the dataset open.",
        )


@dataclass(frozen=True, slots=True)
class AudioVae:
    """Encodes sound as *LTXV Audio VAE Encode* does, or the nodes of MiniMax-H3.

    Attributes:
        vae: The audio VAE input's value.
        scale: As `GraphModel.sound_scale`.
    """

    vae: Any
    scale: float = 1.0

    @property
    def identity(self) -> str:
        """Names what the latents depend on, for the cache's keys."""
        scaled = "" if self.scale == 1.0 else f" times {self.scale!r}"
        return f"{vae_identity(self.vae)}{scaled}"

    def lent(self, rate: float, *, always: bool = False) -> LentSound:
        """The VAE for previews of so many frames a second; `always` as of `LentSound`."""
        from ...trainer_core.families.graph_model_denoiser import LentSound

        return LentSound(lambda frames: self.shape(frames / rate), self.decode, always)

    def decode(self, latents: Tensor) -> Sound:
        """Undo `encode` of one sound, as *LTXV Audio VAE Decode* does."""
        import torch

        from ...trainer_core.types import Sound

        with torch.inference_mode():
            raw = latents[None].float().cpu() / self.scale
            wave = self.vae.decode(raw).movedim(-1, 1)[0].float().cpu()
        return Sound(ordinary_copy(wave), int(self.vae.first_stage_model.output_sample_rate))

    def shape(self, seconds: float) -> tuple[int, int, int]:
        """The shape of the latents for a clip, as of ComfyUI's nodes of empty ones."""
        model, channels = self.vae.first_stage_model, int(self.vae.latent_channels)
        if not hasattr(model, _LENGTHS[0]):
            return channels, 2, round(seconds * model.latents_per_second)
        length = int(model.num_of_latents_from_frames(seconds, 1.0))
        return channels, length, int(model.latent_frequency_bins)

    def silence(self, seconds: float) -> Tensor:
        """The latents `[c, 2, t]` of a clip without sound, as a prediction has them."""
        import torch

        rate = int(self.vae.audio_sample_rate)
        with torch.inference_mode():
            waveform = torch.zeros(2, round((seconds + _BEHIND) * rate))
            return ordinary_copy(self.encode(waveform, rate, seconds)[0].float().cpu())

    def encode(self, waveform: Tensor, rate: int, seconds: float) -> Tensor:
        """Encode a clip's sound `[2, N]` in [-1, 1], a little longer than it, to `[1, *shape]`.

        The rate is numbers of a channel for each second. The latents are scaled.
        """
        import torch
        from torchaudio.functional import resample

        own = self.vae.audio_sample_rate
        sound = waveform if rate == own else resample(waveform, rate, own)
        # Of any other length than a multiple ComfyUI cuts off both ends, which moves the sound.
        sound = torch.nn.functional.pad(sound, (0, -sound.shape[1] % self.vae.downscale_ratio))
        found = self.vae.encode(sound[None].movedim(1, -1))
        return self.scale * found[(slice(None), *map(slice, self.shape(seconds)))]
