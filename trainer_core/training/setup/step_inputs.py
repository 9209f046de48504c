"""Builds what the steps of a loaded run need: batch plan, loss, targets, held-out samples."""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace

from ...config import RunConfig, dataset_folders
from ...data.batch_plan import BatchPlan
from ...data.cache.cached_dataset import CachedDataset
from ...data.choose_view import Views
from ...data.load_batch import load_batch
from ...data.repeats_and_weights import repeats_and_weights
from ...diffusion.sigma import band_shares, make_quantile
from ...errors import DatasetError
from ...types import Batch, Bucket, PreservedBatch
from ..objectives.preservation_twins import BaseAnswers, Twins
from ..objectives.slider import SliderAnswers
from ..objectives.validation import FixedSamples, ValidationSetup, hold_out, trained_alike
from ..step.batch_sizes import batch_sizes
from ..step.make_loss import (
    at_noise,
    make_loss,
    make_weighting,
    strength_signs,
    times_trained,
    with_noises,
)
from ..step.micro_batch import MicroBatchLoss
from .load import Loaded

_FIFTHS = 5


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
        num_repeats=repeats_and_weights(dataset.items.paces(), config.dataset)[0],
        seed=config.seed,
        preserved_share=kept.share if run.preservation or kept.asks_base else 0.0,
        text_tokens=dataset.text_tokens,
    )


def micro_batch_loss(
    run: Loaded,
    plan: BatchPlan,
    part: tuple[int, int],
    passes: Callable[[int], int] = lambda own: own,
) -> MicroBatchLoss:
    """What computes a run's micro-batches.

    Args:
        part: ``(index, count)`` of this process's part of each micro-batch.
    """
    config, kept = run.config, run.preservation
    loss, noises = config.training.loss, config.training.noises_per_latent
    times = times_trained(config)

    def load_preserved(step: int, micro: int) -> PreservedBatch | None:
        which, turn = divmod(micro, times)
        # Each time that an image is trained has points of its own, so that their share stays.
        drawn = [each * times + turn for each in plan.part(step, which, part).preserved]
        return kept.batch(drawn) if kept is not None and drawn else None

    quantile = _quantiles(run)
    twins = Twins.of(config, run.data.dataset, plan, part)
    load = functools.partial(
        load_batch,
        run.data.dataset,
        plan,
        caption_dropout=config.dataset.caption_dropout,
        seed=config.seed,
        share=part,
        sample_weights=repeats_and_weights(run.data.dataset.items.paces(), config.dataset)[1],
        views=Views.of(config.dataset, config.seed),
        mask=config.dataset.mask,
        sound_weight=loss.sound,
    )
    return MicroBatchLoss(
        load=with_noises(load, times),
        load_preserved=load_preserved,
        predict=functools.partial(
            run.data.family.prediction.predict, run.transformer, guidance=config.training.guidance
        ),
        sigma_at=lambda batch, place: quantile(batch)(place),
        seed=config.seed,
        part=part,
        device=run.processes.device,
        loss_function=make_loss(loss),
        sigma_weight=make_weighting(
            loss, run.state.learned_weighting, run.data.family.prediction.parameterization
        ),
        noise_offset=loss.noise_offset,
        parameterization=run.data.family.prediction.parameterization,
        passes=passes,
        stratified=config.training.sigma.stratified,
        load_twins=(lambda step, micro: None) if twins is None else _with_noises(twins, noises),
        signs=strength_signs(config),
    )


def base_answers(run: Loaded, maker: MicroBatchLoss) -> MicroBatchLoss:
    """The same; where preservation or a slider needs it, the base computes the targets."""
    processes, slider = run.processes, run.config.dataset.slider
    if slider.is_on:
        answers = SliderAnswers(
            maker.predict,
            run.state.adapter,
            processes.device,
            slider.strength,
            has_negative=slider.has_negative,
            passes=processes.passes,
        )
        return replace(maker, fill_targets=answers)
    if not run.config.dataset.preservation.asks_base:
        return maker
    answers = BaseAnswers(maker.predict, run.state.adapter, processes.device, processes.passes)
    return replace(maker, fill_targets=answers)


def _with_noises(load: Twins, noises: int) -> Callable[[int, int], tuple[Batch, int] | None]:
    """Twins have the noises of the samples that they are twins of."""

    def again(step: int, micro: int) -> tuple[Batch, int] | None:
        which, turn = divmod(micro, noises)
        found = load(step, which)
        return found and (at_noise(found[0], noises, turn), found[1])

    return again


def measured_samples(run: Loaded) -> tuple[FixedSamples | None, FixedSamples | None]:
    """What a run measures the loss on.

    Returns:
        Held-out samples, None where there are none; and as many trained ones to compare with, None
        where all are ordinary images.
    """
    config, dataset = run.config, run.data.dataset
    settings = config.dataset.validation
    count, quantile = settings.noise_levels, _quantiles(run)

    def levels(batch: Batch) -> Sequence[float]:
        # The middles of equal shares of what is drawn in training: alike for every image.
        of_size = quantile(batch)
        return [of_size((level + 0.5) / count) for level in range(count)]

    setup = ValidationSetup(
        batch_sizes(config, dataset),
        levels,
        count,
        mask=config.dataset.mask,
        parameterization=run.data.family.prediction.parameterization,
        sound_weight=config.training.loss.sound,
    )
    held = hold_out(dataset, settings.most, setup)
    return held, held and trained_alike(dataset, held, setup)


def describe_levels(run: Loaded) -> list[str]:
    """Say at which noise levels a run trains: the share of the draws in each fifth of sigma.

    Returns:
        A line; that of the most frequent size where the noise levels depend on it.
    """
    sizes = Counter(run.data.dataset.buckets)
    size = max(sizes, key=lambda each: (sizes[each], each))
    shares = band_shares(_quantile_of(run, size), _FIFTHS)
    listed = ", ".join(
        f"{index / _FIFTHS:.1f}-{(index + 1) / _FIFTHS:.1f} {share:.0%}"
        for index, share in enumerate(shares)
    )
    density, over, usual = run.config.training.sigma.density, "", ""
    if run.data.family.prediction.levels is not None:
        over = " over time"
        usual = "" if density == "uniform" else " Density auto is uniform, as it was trained."
    return [f"Noise levels ({density}{over}): {listed}.{usual}"]


def _quantiles(run: Loaded) -> Callable[[Batch], Callable[[float], float]]:
    # One for each size, made before the first step: a shift may be read from the base's files.
    data = run.data
    by_shape = {
        data.family.latent_shape(data.location, size.width, size.height)[-2:]: _quantile_of(
            run, size
        )
        for size in set(data.dataset.buckets)
    }
    return lambda batch: by_shape[tuple(batch.latents.shape[-2:])]


def _quantile_of(run: Loaded, size: Bucket) -> Callable[[float], float]:
    # Of a family with levels the density is that of times, which the schedule maps to sigma.
    sigma, data = run.config.training.sigma, run.data
    shift = sigma.shift or 1.0
    if sigma.density == "shifted" and sigma.shift is None:
        shift = data.family.training_shift(data.location, size.width, size.height)
    quantile = make_quantile(
        sigma.density,
        sigma.mean,
        sigma.std,
        shift=shift,
        minimum=sigma.min,
        maximum=sigma.max,
        mode_scale=sigma.mode_scale,
        alpha=sigma.alpha,
        beta=sigma.beta,
    )
    levels = data.family.prediction.levels
    return quantile if levels is None else lambda place: levels.at(quantile(place))
