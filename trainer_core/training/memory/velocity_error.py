"""Quantization error: how far a base's velocity is from that of its dense weights."""

from __future__ import annotations

import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from ...adapter_files.factors.put_on_base import put_on_base
from ...bases.locate import locate_base
from ...bases.read_base_adapters import read_base_adapters
from ...config import RunConfig
from ...counters import counter_seed
from ...data.batch_plan import BatchPlan
from ...data.load_batch import load_batch
from ...device import DTYPES, release_memory, resolve_device, resolve_precision, send
from ...diffusion.flow import spread_over_frames
from ...diffusion.parameterization import FLOW, Parameterization
from ...families.family_specs import Predict
from ...families.registry import get_family
from ...quantization.quantized_linear import set_compute
from ...types import Batch
from ..prepare.cache_manifest import read_manifest

SIGMAS = (0.1, 0.5, 0.9)
"""Noise levels that are compared."""


def velocity_report(config: RunConfig) -> str:
    """What `cached_velocity_error` gives, in words.

    Raises:
        InputError: As it does.
    """
    if config.training.text_encoder.train:
        return "not measured: the cache has no text that the denoiser alone could read"
    if config.dataset.slider.is_on:
        return "not measured: a slider's images are made before the first step"
    try:
        error = cached_velocity_error(config, resolve_device(config.memory.device))
    except torch.OutOfMemoryError:
        return "not measured: the dense base does not fit"
    return f"{100 * error:.2f} % of that of the dense base, on a batch of the cache"


def cached_velocity_error(config: RunConfig, device: torch.device) -> float:
    """Compare a run's base with its dense weights, on a batch of its cache.

    Args:
        config: A run file with ``cache.manifest``.

    Raises:
        InputError: When cache, base or settings cannot be used.
        torch.OutOfMemoryError: When the dense base does not fit.
    """
    if not config.cache.manifest:
        raise ValueError("the run file names no finished cache")
    cache = read_manifest(Path(config.cache.manifest))
    dataset, family, memory = cache.dataset, get_family(config.family), config.memory
    settings = config.base.model_copy(update={"variant": cache.variant})
    edits = any(dataset.control_buckets)
    location = locate_base(settings, family, edits, needs_encoders=False)
    dtype = DTYPES[resolve_precision(config.training.precision, device)]

    def other() -> nn.Module:
        transformer = family.load_transformer(location, dtype, device, memory.base_format)
        set_compute(transformer, memory.compute)
        adapters = read_base_adapters(settings, family)
        repairs = [each for each in adapters if each.when == "quantized"]
        put_on_base(transformer, family.layers.key_map, repairs, merge=False)
        return transformer

    plan = BatchPlan(
        buckets=dataset.buckets,
        control_counts=dataset.kinds,
        batch_size=config.training.batch_size,
        micro_batches=1,
        num_repeats=[int(not item.validation) for item in dataset.items],
        seed=config.seed,
    )
    first = {"step": 1, "micro": 0, "caption_dropout": 0.0, "seed": config.seed}
    batch = load_batch(dataset, plan, **first, mask=config.dataset.mask)
    if batch is None:
        raise ValueError("a plan without points that preserve the base has samples")
    dense = functools.partial(family.load_transformer, location, dtype, device)
    return velocity_error(
        family.prediction.predict,
        dense,
        other,
        batch=batch,
        guidance=config.training.guidance,
        device=device,
        parameterization=family.prediction.parameterization,
    )


def velocity_error(
    predict: Predict,
    dense: Callable[[], nn.Module],
    other: Callable[[], nn.Module],
    batch: Batch,
    guidance: float,
    device: torch.device,
    parameterization: Parameterization = FLOW,
) -> float:
    """Compare what two forms of a base predict for a batch, one of them in memory at a time.

    Args:
        dense: Loads the base in the run's precision.
        other: Loads it in another format, or with other products.
        parameterization: What their raw output stands for.

    Returns:
        The relative error of the velocity over all samples and `SIGMAS`.
    """
    exact, found = (
        _velocities(
            predict,
            load,
            batch,
            guidance=guidance,
            device=device,
            parameterization=parameterization,
        )
        for load in (dense, other)
    )
    if batch.masks is not None:
        # What counts less in the loss counts less here: squares are weighed as there.
        share = spread_over_frames(batch.masks, batch.latents).double().sqrt()
        exact, found = exact * share, found * share
    return ((found - exact).norm() / exact.norm()).item()


@torch.no_grad()
def _velocities(
    predict: Predict,
    load: Callable[[], nn.Module],
    batch: Batch,
    guidance: float,
    device: torch.device,
    parameterization: Parameterization,
) -> Tensor:
    """On the CPU, in float64."""

    def sent(tensor: Tensor) -> Tensor:
        return send(tensor, device)

    generator = torch.Generator().manual_seed(counter_seed(0, "velocity error"))
    noise = torch.randn(batch.latents.shape, generator=generator)
    options: dict[str, Any] = {
        "conditionings": [{k: sent(v) for k, v in each.items()} for each in batch.conditionings],
        "controls": [sent(control) for control in batch.controls],
        "guidance": guidance,
    }
    found = []
    transformer = load()
    for sigma in SIGMAS:
        sigmas = torch.full((len(noise),), sigma)
        noisy = sent(parameterization.noised(batch.latents, noise, sigmas))
        output = predict(transformer, noisy, sent(sigmas), **options)
        velocity = parameterization.velocity(output, noisy, sent(sigmas))
        found.append(velocity.double().cpu())
    del transformer
    release_memory(device)
    return torch.stack(found)
