"""What fewer bits cost: how far a base's velocity is from that of its dense weights."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from ..counters import counter_seed
from ..device import release_memory, send
from ..diffusion.flow import interpolate
from ..families.family import Predict
from ..types import Batch

SIGMAS = (0.1, 0.5, 0.9)
"""Noise levels that are compared."""


def velocity_error(
    predict: Predict,
    dense: Callable[[], nn.Module],
    other: Callable[[], nn.Module],
    batch: Batch,
    guidance: float,
    device: torch.device,
) -> float:
    """Compare what two forms of a base predict for a batch, one of them in memory at a time.

    Args:
        predict: The family's.
        dense: Loads the base in the run's precision.
        other: Loads it in another format, or with other products.
        batch: Encoded samples.
        guidance: As the run's.
        device: Where both compute.

    Returns:
        The relative error of the velocity over all samples and `SIGMAS`.
    """
    exact, found = (_velocities(predict, load, batch, guidance, device) for load in (dense, other))
    return ((found - exact).norm() / exact.norm()).item()


@torch.no_grad()
def _velocities(
    predict: Predict,
    load: Callable[[], nn.Module],
    batch: Batch,
    guidance: float,
    device: torch.device,
) -> Tensor:
    """On the CPU, in float64."""

    def sent(tensor: Tensor) -> Tensor:
        return send(tensor, device)

    generator = torch.Generator().manual_seed(counter_seed(0, "velocity error"))
    noise = torch.randn(batch.latents.shape, generator=generator)
    given: dict[str, Any] = {
        "conditionings": [{k: sent(v) for k, v in each.items()} for each in batch.conditionings],
        "controls": [sent(control) for control in batch.controls],
        "guidance": guidance,
    }
    found = []
    transformer = load()
    for sigma in SIGMAS:
        sigmas = torch.full((len(noise),), sigma)
        noisy = sent(interpolate(batch.latents, noise, sigmas))
        found.append(predict(transformer, noisy, sent(sigmas), **given).double().cpu())
    del transformer
    release_memory(device)
    return torch.stack(found)
