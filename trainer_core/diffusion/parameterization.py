"""What a denoiser's raw output stands for: the velocity, the noise, v, or EDM's F.

There is one coordinate of noise for all of them, the share s of noise on the straight path::

    noisy = (1 - s) x_0 + s eps

A model whose noise level is k, as in k-diffusion (``x_0 + k eps``), has s = k / (1 + k), and its
noisy latents are ``noisy / (1 - s)``; those of a variance-preserving model are ``noisy / r`` with
r² = (1 - s)² + s². So latents differ by a factor that depends on s alone, and a step of Euler's
method along the velocity ``eps - x_0`` in s is the same step in k.

Every coefficient is a closed form without differences of large numbers: at both ends, and for the
last level of a schedule whose signal ends at (almost) nothing.

Source: Ho et al. 2020 (eps); Salimans and Ho, Progressive Distillation (2022), appendix D (v);
Karras et al., Elucidating the Design Space (2022), table 1 (F); Lipman et al. 2022 (flow).
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass

import torch
from torch import Tensor

from .flow import interpolate, velocity_target

_FULL = 1.0 - 1e-6
"""From here on a schedule begins at pure noise: shifts round."""


@dataclass(frozen=True, slots=True)
class Parameterization(ABC):
    """What a denoiser is compared with, and how its output becomes a velocity.

    Noise levels are tensors `[B]`, or one number without dimensions; latents are `[B, C, h, w]` or
    `[B, C, f, h, w]`, in float32 where nothing else is wanted.
    """

    @property
    @abstractmethod
    def name(self) -> str:
        """For messages: ``flow``, ``eps``, ``v`` or ``edm``."""

    def noised(self, latents: Tensor, noise: Tensor, sigma: Tensor) -> Tensor:
        """Mix an image with noise.

        Args:
            latents: The images x_0.
            noise: Standard normal, of the same shape.
            sigma: The share of noise of each sample, in [0, 1].
        """
        return interpolate(latents, noise, sigma)

    @abstractmethod
    def target(self, latents: Tensor, noise: Tensor, sigma: Tensor) -> Tensor:
        """What the raw output is compared with; arguments as for `noised`."""

    @abstractmethod
    def velocity(self, output: Tensor, noisy: Tensor, sigma: Tensor) -> Tensor:
        """The derivative of the noisy latents by s, as a raw output tells it.

        Args:
            noisy: What it was asked about, on the straight path.
            sigma: The share of noise of each sample, in [0, 1]; for ``eps`` below 1, where the
                noise says nothing of the image.
        """

    def start(self, noise: Tensor, sigma: float) -> Tensor:
        """Latents that a generation begins with.

        They have the spread of a variance-preserving model's noise, as ComfyUI and Diffusers begin:
        ``sqrt(1 + k²) eps`` in k-diffusion.

        Args:
            noise: Standard normal.
            sigma: The first, and strongest, level of the schedule.
        """
        return math.hypot(1.0 - sigma, sigma) * noise

    @abstractmethod
    def error_gains(self, sigma: float) -> tuple[float, float]:
        """How large an error of 1 in the raw output is in the noise and in the image it tells.

        The squares of the two have the ratio SNR = ((1 - s) / s)². They are at least 0; that of the
        image may be infinite at pure noise.

        Args:
            sigma: In [0, 1].
        """

    def sound_weight(self, sigma: Tensor) -> Tensor:
        """The weight `[B]` of the loss of clips' sound by which it is that of its own velocity."""
        return torch.ones_like(sigma)

    def debiased(self, sigma: float) -> float | None:
        """The weight of the loss that takes its bias out; None where there is none."""
        del sigma
        return None


@dataclass(frozen=True, slots=True)
class _Flow(Parameterization):
    noise_scale: float = 1.0
    sound_scale: float = 1.0

    @property
    def name(self) -> str:
        return "flow"

    def noised(self, latents: Tensor, noise: Tensor, sigma: Tensor) -> Tensor:
        return interpolate(latents, self._scaled(noise), sigma)

    def target(self, latents: Tensor, noise: Tensor, sigma: Tensor) -> Tensor:
        del sigma
        return velocity_target(latents, self._scaled(noise))

    def velocity(self, output: Tensor, noisy: Tensor, sigma: Tensor) -> Tensor:
        del noisy, sigma
        return output

    def start(self, noise: Tensor, sigma: float) -> Tensor:
        scaled = self._scaled(noise)
        return scaled if sigma >= _FULL else sigma * scaled

    def error_gains(self, sigma: float) -> tuple[float, float]:
        return 1.0 - sigma, sigma

    def sound_weight(self, sigma: Tensor) -> Tensor:
        return (1.0 - (1.0 - 1.0 / self.sound_scale) * sigma).square()

    def _scaled(self, noise: Tensor) -> Tensor:
        return noise if self.noise_scale == 1.0 else self.noise_scale * noise


@dataclass(frozen=True, slots=True)
class _Epsilon(Parameterization):
    @property
    def name(self) -> str:
        return "eps"

    def target(self, latents: Tensor, noise: Tensor, sigma: Tensor) -> Tensor:
        del latents, sigma
        return noise

    def velocity(self, output: Tensor, noisy: Tensor, sigma: Tensor) -> Tensor:
        # (noisy - s eps) / (1 - s) is the image; eps less that has no difference of large numbers.
        share = _along(sigma, noisy)
        return (output - noisy) / (1.0 - share)

    def error_gains(self, sigma: float) -> tuple[float, float]:
        return 1.0, sigma / (1.0 - sigma) if sigma < 1.0 else math.inf

    def debiased(self, sigma: float) -> float:
        return _bounded_snr(sigma) ** -0.5


@dataclass(frozen=True, slots=True)
class _V(Parameterization):
    """With q² = s² + (sigma_data (1 - s))², v = (sigma_data (1 - s) eps - s x_0 / sigma_data) / q.

    ``sign`` is -1 for EDM's F, which is -v.
    """

    sigma_data: float = 1.0
    sign: int = 1

    @property
    def name(self) -> str:
        return "v" if self.sign > 0 else "edm"

    def target(self, latents: Tensor, noise: Tensor, sigma: Tensor) -> Tensor:
        share = _along(sigma, latents)
        signal = self.sigma_data * (1.0 - share)
        length = self.sign * (share.square() + signal.square()).sqrt()
        return signal / length * noise - share / (self.sigma_data * length) * latents

    def velocity(self, output: Tensor, noisy: Tensor, sigma: Tensor) -> Tensor:
        share = _along(sigma, noisy)
        signal = self.sigma_data * (1.0 - share)
        square = share.square() + signal.square()
        kept = (share - self.sigma_data * signal) / square
        return kept * noisy + self.sign * self.sigma_data / square.sqrt() * output

    def error_gains(self, sigma: float) -> tuple[float, float]:
        gain = self.sigma_data / math.hypot(sigma, self.sigma_data * (1.0 - sigma))
        return gain * (1.0 - sigma), gain * sigma

    def debiased(self, sigma: float) -> float | None:
        return 1.0 / (_bounded_snr(sigma) + 1.0) if self.sign > 0 else None


_LEAST_SNR, _MOST_SNR = 1e-8, 1000.0


def _bounded_snr(sigma: float) -> float:
    """SNR, bounded at weak noise as other trainers do, and above 0 at pure noise."""
    ratio = (1.0 - sigma) / sigma if sigma > 0.0 else math.inf
    # The ratio's bound first: its square may be too large for a number.
    return min(max(min(ratio, _MOST_SNR) ** 2, _LEAST_SNR), _MOST_SNR)


def _along(sigma: Tensor, latents: Tensor) -> Tensor:
    # Half precision has no 1 - s beside pure noise.
    dtype = torch.promote_types(latents.dtype, torch.float32)
    return sigma.to(latents.device, dtype).reshape(-1, *[1] * (latents.ndim - 1))


FLOW: Parameterization = _Flow()
"""The velocity ``eps - x_0`` itself (flow matching)."""

EPS: Parameterization = _Epsilon()
"""The noise."""


def flow(noise_scale: float, sound_scale: float = 1.0) -> Parameterization:
    """Flow matching towards noise of another size: the velocity ``noise_scale eps - x_0``.

    Args:
        noise_scale: Standard deviation of the noise, above 0.
        sound_scale: Factor on the latents of clips' sound, above 0, whose own noise level at sigma
            s is then ``s / (sound_scale + (1 - sound_scale) s)``, as ComfyUI 0.33's
            ``ModelSamplingAV`` carries sound of another shift.
    """
    return _Flow(noise_scale, sound_scale)


def v_prediction(sigma_data: float = 1.0) -> Parameterization:
    """v, which is ``alpha eps - sigma x_0`` of a variance-preserving model at ``sigma_data`` 1.

    Args:
        sigma_data: Standard deviation of the latents as the model was trained, above 0.
    """
    return _V(sigma_data)


def edm(sigma_data: float) -> Parameterization:
    """F of EDM's preconditioning: ``x_0 = c_skip x + c_out F``.

    Args:
        sigma_data: Standard deviation of the latents as the model was trained, above 0.
    """
    return _V(sigma_data, -1)
