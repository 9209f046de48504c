"""The VAE of the sound of clips, as ComfyUI loads it for a MODEL that makes video and sound."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ...trainer_core.errors import InputError
from ...trainer_core.families import native_model
from .graph_inputs import ordinary, require_plain

if TYPE_CHECKING:
    from torch import Tensor

    from ...trainer_core.families.lent import LentSound
    from ...trainer_core.types import Sound

_SOCKET = "audio_vae"


def require_audio_vae(vae: Any, model: Any) -> None:
    """Refuse what cannot encode the sound of a MODEL.

    Raises:
        InputError: When it is no VAE of sound, or the MODEL makes none.
    """
    if not native_model.makes_sound(model.model.diffusion_model):
        raise InputError(
            f"a VAE at the {_SOCKET} input, and a MODEL that makes no sound "
            f"({type(model.model).__name__})",
            "a MODEL that makes video and sound, such as LTX-2",
            f"Disconnect {_SOCKET}, or connect such a MODEL.",
        )
    if not hasattr(vae.first_stage_model, "num_of_latents_from_frames"):
        raise InputError(
            f"{type(vae.first_stage_model).__name__} at the {_SOCKET} input",
            "the VAE that the MODEL's sound is decoded with",
            f"Connect Load LTXV Audio VAE to {_SOCKET}.",
        )
    require_plain(vae.patcher, _SOCKET)


@dataclass(frozen=True, slots=True)
class AudioVae:
    """Encodes sound as *LTXV Audio VAE Encode* does.

    Attributes:
        vae: The audio VAE input's value.
    """

    vae: Any

    def lent(self, rate: float) -> LentSound:
        """The VAE for previews of so many frames a second."""
        from ...trainer_core.families.lent import LentSound

        model = self.vae.first_stage_model
        channels, bands = self.vae.latent_channels, model.latent_frequency_bins
        return LentSound(lambda frames: (channels, self.length(frames / rate), bands), self.decode)

    def decode(self, latents: Tensor) -> Sound:
        """Undo `encode` of one sound `[c, t, b]`, as *LTXV Audio VAE Decode* does."""
        import torch

        from ...trainer_core.types import Sound

        with torch.inference_mode():
            wave = self.vae.decode(latents[None].float().cpu()).movedim(-1, 1)[0].float().cpu()
        return Sound(ordinary(wave), int(self.vae.first_stage_model.output_sample_rate))

    def length(self, seconds: float) -> int:
        """Latents along time for a clip, as many as *LTXV Empty Latent Audio* has."""
        return int(self.vae.first_stage_model.num_of_latents_from_frames(seconds, 1.0))

    def encode(self, waveform: Tensor, rate: int, seconds: float) -> Tensor:
        """Encode a clip's sound.

        Args:
            waveform: `[2, N]` in [-1, 1]; a little longer than the clip.
            rate: Numbers of a channel for each second.
            seconds: Length of the clip.

        Returns:
            `[1, c, t, b]`, where t is `length`.
        """
        import torch
        from torchaudio.functional import resample

        own, count = self.vae.audio_sample_rate, self.length(seconds)
        sound = waveform if rate == own else resample(waveform, rate, own)
        # Of a length that is no multiple of this ComfyUI cuts off both ends, and moves the sound.
        sound = torch.nn.functional.pad(sound, (0, -sound.shape[1] % self.vae.downscale_ratio))
        return self.vae.encode(sound[None].movedim(1, -1))[:, :, :count]
