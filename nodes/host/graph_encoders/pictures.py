"""Images to the denoiser's latents and back, with the graph's VAE."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ....trainer_core.errors import InputError
from .inputs import Vae, ordinary, require_plain

if TYPE_CHECKING:
    from torch import Tensor

    from ....trainer_core.families.family import VaeSpec

_GRID = 8


def require_fitting_vae(vae: Vae, spec: VaeSpec) -> None:
    """Check that a VAE belongs to the family.

    Args:
        vae: The graph's VAE.
        spec: The family's VAE.

    Raises:
        InputError: When it is another kind, or a fast approximation for previews.
    """
    require_plain(getattr(vae, "patcher", None), "VAE")
    weights = {} if vae.first_stage_model is None else vae.first_stage_model.state_dict()
    marker = weights.get(spec.marker)
    if marker is None or (marker.ndim, *marker.shape[1:2]) != (spec.dimensions, spec.channels):
        raise InputError(
            f"{_describe(vae)} at the VAE input",
            f"{spec.title}, of {spec.channels} latent channels",
            spec.remedy,
        )


def _describe(vae: Vae) -> str:
    if vae.first_stage_model is None:
        return "a VAE without weights"
    kind = type(vae.first_stage_model).__name__
    channels = getattr(vae, "latent_channels", "unknown")
    return f"a VAE of another kind ({kind}, {channels} latent channels)"


class GraphVae:
    """The graph's VAE in the normalised space of the denoiser.

    Args:
        vae: ComfyUI's VAE, whose latents are before the model's own scaling.
        spec: The family's VAE.
    """

    def __init__(self, vae: Vae, spec: VaeSpec) -> None:
        self.vae = vae
        self.spec = spec

    def encode(self, pixels: Tensor) -> Tensor:
        """Encode images without sampling.

        Args:
            pixels: `[B, 3, H, W]`, in [-1, 1]; sides are multiples of 8.

        Returns:
            `[B, C, H / 8, W / 8]`, float32 on the CPU: ``(latents - mean) / deviation``.

        Raises:
            InputError: When a side is no multiple of 8: ComfyUI would cut the image.
        """
        import torch

        height, width = pixels.shape[-2:]
        if height % _GRID or width % _GRID:
            raise InputError(
                f"a picture of {width} x {height} pixels for the VAE",
                f"sides that are multiples of {_GRID}",
                "Choose sizes that are multiples of the family's own step (16 or 32 pixels).",
            )
        with torch.inference_mode():
            frames = ((pixels.float() + 1) / 2).movedim(1, -1)
            # One by one: a batch would be the frames of a video to a VAE that knows videos.
            raw = torch.cat([self._still(self.vae.encode(frame[None])) for frame in frames])
            mean, deviation = self._statistics()
            latents = (raw.float().cpu() - mean) / deviation
        wanted = (len(pixels), self.spec.channels, height // _GRID, width // _GRID)
        if tuple(latents.shape) != wanted:
            raise InputError(
                f"latents of shape {list(latents.shape)} from the VAE input",
                f"{list(wanted)} for a picture of {width} x {height} pixels",
                self.spec.remedy,
            )
        return ordinary(latents)

    def decode(self, latents: Tensor) -> Tensor:
        """Undo `encode`.

        Args:
            latents: `[B, C, h, w]`, normalised.

        Returns:
            `[B, 3, H, W]`, float32 on the CPU, in [-1, 1].
        """
        import torch

        with torch.inference_mode():
            mean, deviation = self._statistics()
            raw = latents.float().cpu() * deviation + mean
            video = self.spec.dimensions == 5
            pixels = self.vae.decode(raw.unsqueeze(2) if video else raw)
            still = pixels[:, 0] if pixels.ndim == 5 else pixels
            result = still[..., :3].movedim(-1, 1).float() * 2 - 1
        return ordinary(result)

    def _statistics(self) -> tuple[Tensor, Tensor]:
        import torch

        mean = torch.tensor(self.spec.mean).view(1, -1, 1, 1)
        return mean, torch.tensor(self.spec.deviation).view(1, -1, 1, 1)

    @staticmethod
    def _still(latents: Tensor) -> Tensor:
        return latents[:, :, 0] if latents.ndim == 5 else latents
