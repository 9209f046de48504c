"""Which noise level each sample of a batch gets."""

from __future__ import annotations

from collections.abc import Callable

import torch

from ..config.training import SigmaSection
from ..diffusion.sigma import make_density
from ..types import Batch
from .encode_dataset import Prepared


def sigma_sampler(sigma: SigmaSection, data: Prepared) -> Callable[[Batch, torch.Generator], float]:
    """Make the density of each size of image that a run has.

    They are made before the first step: a shift may be read from the base's files.

    Args:
        sigma: The run file's section.
        data: What is trained on.

    Returns:
        Samples a sigma in [0, 1] for one of a batch's images from a generator.
    """
    by_shape: dict[tuple[int, ...], Callable[[torch.Generator], float]] = {}
    for bucket in set(data.dataset.buckets):
        size = (data.location, bucket.width, bucket.height)
        usual = data.family.training_shift(*size) if sigma.density == "shifted" else 1.0
        by_shape[data.family.latent_shape(*size)] = make_density(
            sigma.density,
            sigma.mean,
            sigma.std,
            sigma.shift or usual,
            sigma.min,
            sigma.max,
            sigma.mode_scale,
        )
    return lambda batch, generator: by_shape[tuple(batch.latents.shape[1:])](generator)
