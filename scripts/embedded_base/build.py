"""The stages of the build, in order."""

from __future__ import annotations

import time
from pathlib import Path

import torch
from diffusers import QwenImageTransformer2DModel

from .base_folder import (
    load_conditioner,
    load_vae,
    write_frozen_parts,
    write_transformer,
    write_vae,
)
from .denoiser import DenoiserSettings, train_denoiser
from .latents import LatentCodec
from .pool import Pool, build_pool
from .vae import VaeSettings, train_vae

POOL_EDITS = 24_000


def build_vae(folder: Path, work: Path, settings: VaeSettings | None = None) -> float:
    """Trains the autoencoder and writes it.

    Args:
        folder: The folder of the base model.
        work: Where unfinished training is kept.
        settings: Sizes and schedule.

    Returns:
        The time this call took, in minutes.
    """
    start = time.monotonic()
    write_vae(train_vae(settings or VaeSettings(), work / "vae.pt"), folder)
    return (time.monotonic() - start) / 60


def training_pool(folder: Path, count: int = POOL_EDITS) -> Pool:
    """Draws and encodes the training examples with the parts in ``folder``."""
    return build_pool(load_conditioner(folder), LatentCodec.of(load_vae(folder)), count)


def build_denoiser(folder: Path, work: Path, settings: DenoiserSettings | None = None) -> float:
    """Trains the transformer and writes it, also at each checkpoint.

    Args:
        folder: The folder of the base model with its other parts in place.
        work: Where unfinished training is kept.
        settings: Sizes and schedule.

    Returns:
        The time this call took, in minutes.
    """
    start = time.monotonic()

    def write(transformer: QwenImageTransformer2DModel, step: int) -> None:
        write_transformer(transformer, folder)

    pool = training_pool(folder)
    trained = train_denoiser(settings or DenoiserSettings(), pool, work / "denoiser.pt", write)
    write_transformer(trained, folder)
    return (time.monotonic() - start) / 60


def build_all(folder: Path, work: Path) -> None:
    """Makes the whole base model.

    Args:
        folder: Where the base model goes.
        work: Where unfinished training is kept.
    """
    # More threads than free cores make such small layers many times slower.
    torch.set_num_threads(1)
    work.mkdir(parents=True, exist_ok=True)
    write_frozen_parts(folder)
    build_vae(folder, work)
    build_denoiser(folder, work)
