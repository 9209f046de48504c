"""What a loaded run trains in each step, and at which noise levels."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

import torch

from ..config import RunConfig, dataset_folders
from ..data.batches import BatchPlan, load_batch
from ..data.cache.cached_dataset import CachedDataset
from ..data.paces import sample_paces
from ..data.views import Views
from ..diffusion.sigma import make_quantile
from ..errors import DatasetError
from ..types import Batch, PreservedBatch
from .loaded import Loaded
from .pass_sizes import batch_sizes
from .read_ahead import Place
from .step import StepMaker
from .twins import BaseAnswers, Twins
from .validation import HeldOut, hold_out


def require_trained(config: RunConfig, dataset: CachedDataset) -> None:
    """Refuse a dataset of which nothing is left to train.

    Raises:
        DatasetError: When every sample is held out.
    """
    if not all(dataset.validations):
        return
    places = [e.place for e in dataset_folders(config.dataset) if e.role == "validation"]
    where = " and ".join([*places, "dataset.validation.share"][: max(1, len(places))])
    raise DatasetError(
        f"all {len(dataset)} images are held out for validation ({where})",
        "images to train on beside those that are held out",
        "Lower dataset.validation.share, or give a folder the role train.",
    )


def batch_plan(run: Loaded) -> BatchPlan:
    """The order in which a run trains its samples."""
    config, dataset = run.config, run.data.dataset
    views, kept = Views.of(config.dataset, config.seed), config.dataset.preservation
    return BatchPlan(
        buckets=dataset.buckets,
        # Samples that are given their control images in other steps share no pass.
        control_counts=views.agreements(dataset.kinds, dataset.folders),
        batch_size=batch_sizes(config, dataset),
        micro_batches=config.training.gradient_accumulation_steps,
        num_repeats=sample_paces(dataset.items.paces(), config.dataset)[0],
        seed=config.seed,
        preserved_share=kept.share if run.preservation or kept.asks_base else 0.0,
        text_tokens=dataset.text_tokens,
    )


def step_maker(
    run: Loaded,
    plan: BatchPlan,
    part: tuple[int, int],
    passes: Callable[[int], int] = lambda own: own,
) -> StepMaker:
    """What computes a run's micro-batches.

    Args:
        run: The run.
        plan: The order of its samples.
        part: ``(index, count)`` of this process's part of each micro-batch.
        passes: As `Processes.passes`.
    """
    config, kept = run.config, run.preservation

    def load_preserved(step: int, micro: int) -> PreservedBatch | None:
        drawn = plan.part(step, micro, part).preserved
        return kept.batch(drawn) if kept is not None and drawn else None

    quantile = _quantiles(run)

    def sample_sigma(batch: Batch, generator: torch.Generator) -> float:
        return quantile(batch)(float(torch.rand((), generator=generator, dtype=torch.float64)))

    return StepMaker(
        load=functools.partial(
            load_batch,
            run.data.dataset,
            plan,
            caption_dropout=config.dataset.caption_dropout,
            seed=config.seed,
            share=part,
            sample_weights=sample_paces(run.data.dataset.items.paces(), config.dataset)[1],
            views=Views.of(config.dataset, config.seed),
            mask=config.dataset.mask,
        ),
        load_preserved=load_preserved,
        predict=functools.partial(
            run.data.family.predict, run.transformer, guidance=config.training.guidance
        ),
        sample_sigma=sample_sigma,
        seed=config.seed,
        part=part,
        device=run.processes.device,
        passes=passes,
        load_twins=Twins.of(config, run.data.dataset, plan, part) or _no_twins,
    )


def base_answers(run: Loaded, maker: StepMaker) -> StepMaker:
    """The same micro-batches, of which the base says what it is held to where it is to be asked."""
    if not run.config.dataset.preservation.asks_base:
        return maker
    processes = run.processes
    asked = BaseAnswers(maker.predict, run.state.adapter, processes.device, processes.passes)
    return replace(maker, answered=asked)


def _no_twins(step: int, micro: int) -> None:
    """Of a run that holds its base to nothing of its own samples."""


def held_out(run: Loaded) -> HeldOut | None:
    """What a run measures the loss on, and never trains; None where it holds nothing out."""
    config, dataset = run.config, run.data.dataset
    settings = config.dataset.validation
    count, quantile = settings.noise_levels, _quantiles(run)

    def levels(batch: Batch) -> Sequence[float]:
        # The middles of equal shares of what is drawn in training: alike for every image.
        of_size = quantile(batch)
        return [of_size((level + 0.5) / count) for level in range(count)]

    sizes, mask = batch_sizes(config, dataset), config.dataset.mask
    return hold_out(dataset, settings.most, sizes, levels, count, mask)


def places(plan: BatchPlan, dealt: tuple[int, int], last: int) -> Callable[..., Place | None]:
    """What a process is asked for behind a micro-batch, up to a last step."""

    def following(step: int, micro: int) -> Place | None:
        behind = [each for each in plan.dealt(step, dealt) if each > micro]
        if behind:
            return step, behind[0]
        return (step + 1, plan.dealt(step + 1, dealt)[0]) if step < last else None

    return following


def all_passes(plan: BatchPlan) -> Iterator[Place]:
    """Every step and micro-batch of a run, without end."""
    step = 1
    while True:
        yield from ((step, micro) for micro in plan.dealt(step))
        step += 1


def _quantiles(run: Loaded) -> Callable[[Batch], Callable[[float], float]]:
    # One for each size, made before the first step: a shift may be read from the base's files.
    sigma, data = run.config.training.sigma, run.data
    by_shape: dict[tuple[int, ...], Callable[[float], float]] = {}
    for bucket in set(data.dataset.buckets):
        size = (data.location, bucket.width, bucket.height)
        usual = data.family.training_shift(*size) if sigma.density == "shifted" else 1.0
        by_shape[data.family.latent_shape(*size)[-2:]] = make_quantile(
            sigma.density,
            sigma.mean,
            sigma.std,
            sigma.shift or usual,
            sigma.min,
            sigma.max,
            sigma.mode_scale,
        )
    return lambda batch: by_shape[tuple(batch.latents.shape[-2:])]
