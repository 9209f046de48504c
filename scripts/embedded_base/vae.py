"""Trains the tiny autoencoder and measures how well it reconstructs pictures."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from diffusers import AutoencoderKLQwenImage

from trainer_core.demo.vocabulary import COLORS, SHAPES, Combination
from trainer_core.filesystem.storage import atomic_write

from .averaging import WeightAverage
from .drawing import draw, draw_varied, random_scene, with_frame
from .flat_vae import FlatVAE

logger = logging.getLogger(__name__)

Z_DIM = 8
# Fixed noise on the latents while training, in units in which their spread is
# near one. The decoder thereby learns to forgive small errors of the denoiser.
LATENT_NOISE = 0.1
PRIOR_WEIGHT = 1e-4
SQUARED_ERROR_WEIGHT = 5.0
CHECKPOINT_EVERY = 500


@dataclass(frozen=True)
class VaeSettings:
    """How the autoencoder is trained.

    Attributes:
        base_dim: Channels at full resolution.
        dim_mult: Channel multipliers of the four resolutions.
        steps: Number of optimiser steps.
        batch: Pictures per step.
        learning_rate: Peak learning rate of AdamW.
        seed: Seed of weights, pictures and noise.
    """

    base_dim: int = 8
    dim_mult: tuple[int, ...] = (1, 2, 4, 8)
    steps: int = 9000
    batch: int = 16
    learning_rate: float = 2e-3
    seed: int = 11


def new_vae(settings: VaeSettings) -> AutoencoderKLQwenImage:
    """Returns an autoencoder with fresh weights, for 64-pixel pictures."""
    torch.manual_seed(settings.seed)
    vae = AutoencoderKLQwenImage(
        base_dim=settings.base_dim,
        z_dim=Z_DIM,
        dim_mult=list(settings.dim_mult),
        num_res_blocks=1,
        temperal_downsample=[False, True, True],
        latents_mean=[0.0] * Z_DIM,
        latents_std=[1.0] * Z_DIM,
    )
    _fix_posterior_width(vae)
    return vae


@torch.no_grad()
def _fix_posterior_width(vae: AutoencoderKLQwenImage) -> None:
    """Makes the encoder report the width of the training noise everywhere."""
    vae.quant_conv.weight[Z_DIM:].zero_()
    vae.quant_conv.bias[Z_DIM:].fill_(2 * math.log(LATENT_NOISE))


def to_tensor(images: np.ndarray) -> torch.Tensor:
    """Converts uint8 ``[B, H, W, 3]`` to float ``[B, 3, H, W]`` in -1..1."""
    scaled = torch.from_numpy(images).permute(0, 3, 1, 2).float() / 127.5 - 1
    return scaled.contiguous(memory_format=torch.channels_last)


def to_images(tensor: torch.Tensor) -> np.ndarray:
    """Converts float ``[B, 3, H, W]`` in -1..1 to uint8 ``[B, H, W, 3]``."""
    levels = ((tensor.clamp(-1, 1) + 1) * 127.5).round().to(torch.uint8)
    return levels.permute(0, 2, 3, 1).contiguous().cpu().numpy()


def _random_combination(shape: str, random: np.random.Generator) -> Combination:
    color, background = random.choice(list(COLORS), size=2, replace=False).tolist()
    return Combination(shape, color, background)


def base_image(random: np.random.Generator) -> np.ndarray:
    """Draws one of the four base shapes, uint8 ``[64, 64, 3]``."""
    shape = SHAPES[random.integers(len(SHAPES))]
    return draw(random_scene(_random_combination(shape, random), random))


def star_image(random: np.random.Generator) -> np.ndarray:
    """Draws a star, uint8 ``[64, 64, 3]``."""
    return draw(random_scene(_random_combination("star", random), random))


def framed_image(random: np.random.Generator) -> np.ndarray:
    """Draws a base shape with the grey frame, uint8 ``[64, 64, 3]``."""
    shape = SHAPES[random.integers(len(SHAPES))]
    return draw(with_frame(random_scene(_random_combination(shape, random), random)))


def training_image(random: np.random.Generator) -> np.ndarray:
    """Draws one picture of the training mixture, uint8 ``[64, 64, 3]``."""
    kind = random.random()
    if kind < 0.35:
        return base_image(random)
    if kind < 0.45:
        return star_image(random)
    if kind < 0.55:
        return framed_image(random)
    return draw_varied(random)


def training_batch(settings: VaeSettings, step: int) -> torch.Tensor:
    """Draws the pictures of one step, ``[B, 3, 64, 64]`` in -1..1."""
    random = np.random.default_rng((settings.seed, step))
    return to_tensor(np.stack([training_image(random) for _ in range(settings.batch)]))


def learning_rate_at(step: int, steps: int, peak: float, warm_up: int = 200) -> float:
    """Returns the rate of a linear warm-up followed by a cosine to zero."""
    if step < warm_up:
        return peak * (step + 1) / warm_up
    return peak * 0.5 * (1 + math.cos(math.pi * (step - warm_up) / max(1, steps - warm_up)))


def reconstruction_loss(
    flat: FlatVAE, images: torch.Tensor, generator: torch.Generator
) -> torch.Tensor:
    """Returns the scalar training loss of one batch ``[B, 3, H, W]``."""
    latents = flat.encode(images)
    noise = torch.randn(latents.shape, generator=generator) * LATENT_NOISE
    error = flat.decode(latents + noise) - images
    fit = error.abs().mean() + SQUARED_ERROR_WEIGHT * error.square().mean()
    return fit + PRIOR_WEIGHT * latents.square().mean()


def train_vae(settings: VaeSettings, checkpoint: Path) -> AutoencoderKLQwenImage:
    """Trains the autoencoder; continues from ``checkpoint`` where one exists.

    Args:
        settings: Sizes and schedule.
        checkpoint: File that holds the state of an unfinished training.

    Returns:
        The real autoencoder with averaged weights and measured latent statistics.
    """
    vae = new_vae(settings)
    flat = FlatVAE(vae)
    average = WeightAverage(flat, decay=0.998)
    optimizer = torch.optim.AdamW(
        flat.parameters(), lr=settings.learning_rate, betas=(0.9, 0.98), weight_decay=1e-4
    )
    first = _resume(checkpoint, flat, average, optimizer)
    for step in range(first, settings.steps):
        rate = learning_rate_at(step, settings.steps, settings.learning_rate)
        for group in optimizer.param_groups:
            group["lr"] = rate
        generator = torch.Generator().manual_seed(settings.seed * 1_000_003 + step)
        loss = reconstruction_loss(flat, training_batch(settings, step), generator)
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(flat.parameters(), 1.0)
        optimizer.step()
        average.update(flat)
        if (step + 1) % CHECKPOINT_EVERY == 0 or step + 1 == settings.steps:
            _save(checkpoint, step + 1, flat, average, optimizer)
            logger.info("vae step %d loss %.4f psnr %s", step + 1, loss, _progress(flat, average))
    average.copy_to(flat)
    flat.push(vae)
    _fix_posterior_width(vae)
    record_latent_statistics(vae)
    return vae


def _progress(flat: FlatVAE, average: WeightAverage) -> str:
    with average.applied_to(flat):
        scores = {
            kind.__name__.removesuffix("_image"): psnr_of_flat(flat, kind)
            for kind in (base_image, star_image, framed_image)
        }
    return " ".join(f"{name} {value:.2f}" for name, value in scores.items())


def _save(
    path: Path, step: int, flat: FlatVAE, average: WeightAverage, optimizer: torch.optim.Optimizer
) -> None:
    state = {
        "step": step,
        "model": flat.state_dict(),
        "average": average.values,
        "optimizer": optimizer.state_dict(),
    }
    atomic_write(path, lambda target: torch.save(state, target))


def _resume(
    path: Path, flat: FlatVAE, average: WeightAverage, optimizer: torch.optim.Optimizer
) -> int:
    if not path.exists():
        return 0
    state = torch.load(path, weights_only=True)
    flat.load_state_dict(state["model"])
    average.resume(state["average"])
    optimizer.load_state_dict(state["optimizer"])
    return int(state["step"])


@torch.no_grad()
def record_latent_statistics(vae: AutoencoderKLQwenImage, count: int = 2000) -> None:
    """Stores mean and spread of each latent channel in the configuration.

    Args:
        vae: The trained autoencoder.
        count: Number of drawn pictures to measure on.
    """
    random = np.random.default_rng(404)
    flat = FlatVAE(vae)
    images = np.stack([base_image(random) for _ in range(count)])
    latents = torch.cat([flat.encode(to_tensor(part)) for part in np.array_split(images, 20)])
    vae.register_to_config(
        latents_mean=[round(v, 5) for v in latents.mean(dim=(0, 2, 3)).tolist()],
        latents_std=[round(v, 5) for v in latents.std(dim=(0, 2, 3)).tolist()],
    )


@torch.no_grad()
def psnr_of_flat(
    flat: FlatVAE,
    kind: Callable[[np.random.Generator], np.ndarray],
    count: int = 64,
    seed: int = 505,
) -> float:
    """Measures the reconstruction of unseen pictures.

    Args:
        flat: The two-dimensional twin of the autoencoder.
        kind: Draws one picture from a random generator.
        count: Number of pictures.
        seed: Seed of the pictures.

    Returns:
        Mean over the pictures of the peak signal-to-noise ratio, in dB.
    """
    random = np.random.default_rng(seed)
    images = np.stack([kind(random) for _ in range(count)])
    decoded = to_images(flat.decode(flat.encode(to_tensor(images))))
    error = (decoded.astype(np.float64) - images) ** 2
    per_image = 10 * np.log10(255**2 / np.maximum(error.mean(axis=(1, 2, 3)), 1e-9))
    return float(per_image.mean())
