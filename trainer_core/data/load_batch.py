"""Loads the batch of one pass of a step from the cache."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import torch

from ..config.folders import MaskSection
from ..types import Batch, CachedSample, SampleTurn, View
from .batch_plan import BatchPlan
from .cache.cached_dataset import CachedDataset
from .choose_view import Views, drops_caption
from .masks import batch_weights, predicted_alone


def load_batch(
    dataset: CachedDataset,
    plan: BatchPlan,
    step: int,
    micro: int,
    caption_dropout: float,
    seed: int,
    share: tuple[int, int] = (0, 1),
    sample_weights: Sequence[float] = (),
    views: Views | None = None,
    mask: MaskSection | None = None,
    sound_weight: float = 1.0,
) -> Batch | None:
    """Read one pass, or one process's share of it.

    Args:
        step: Optimizer step, from 1.
        micro: Pass within the step, from 0.
        caption_dropout: Probability of an empty caption, 0 to 1.
        share: ``(index, count)``: which of how many nearly equal parts to read.
        sample_weights: Factor on the loss of each sample of the dataset; empty where all are 1.
        views: Chooses the view of each sample; unset: the first caption or, with the probability
            of ``caption_dropout``, the empty one.
        mask: What masks weigh; unset: the defaults.

    Returns:
        The samples; `positions` count over the whole step. None where all of the part preserves
        the base.

    Raises:
        StorageError: When a cached file is damaged.
    """
    part = plan.part(step, micro, share)
    if not part.indices:
        return None

    def view(index: int, position: int, turn: int) -> View:
        if views is None:
            return View(None if drops_caption(caption_dropout, seed, step, position) else 0)
        return views.of_sample(dataset.items[index], step, position, turn)

    samples = [
        dataset.load(index, view(index, position, turn))
        for index, position, turn in zip(part.indices, part.positions, part.turns, strict=True)
    ]
    weights = tuple(sample_weights[index] for index in part.indices) if sample_weights else ()
    if part.idle:
        weights = (0.0,)
    return make_batch(
        samples,
        part.positions,
        mask,
        weights,
        idle=part.idle,
        sound_weight=sound_weight,
        turns=tuple(itertools.starmap(SampleTurn, zip(part.indices, part.turns, strict=True))),
    )


def make_batch(
    samples: Sequence[CachedSample],
    positions: tuple[int, ...],
    mask: MaskSection | None = None,
    weights: tuple[float, ...] = (),
    *,
    idle: bool = False,
    sound_weight: float = 1.0,
    turns: tuple[SampleTurn | None, ...] = (),
) -> Batch:
    """Put samples of one size together.

    Args:
        mask: What masks weigh; unset: the defaults.
        weights: Factor on the loss of each; empty where all are 1.
        turns: As of `Batch`; empty for samples whose draws are not stratified.
    """
    sounds = [each.sound for each in samples if each.sound is not None]
    clean = [each.clean for each in samples]
    return Batch(
        names=tuple(sample.name for sample in samples),
        positions=positions,
        latents=torch.stack([sample.latents for sample in samples]),
        controls=tuple(
            torch.stack(same) for same in zip(*(sample.controls for sample in samples), strict=True)
        ),
        conditionings=tuple(sample.conditioning for sample in samples),
        weights=weights if set(weights) - {1.0} else (),
        masks=predicted_alone(
            batch_weights([each.mask for each in samples], mask or MaskSection(), clean), clean
        ),
        idle=idle,
        directions=tuple(each.direction for each in samples if each.direction is not None),
        sounds=torch.stack(sounds) if sounds else None,
        sound_weight=sound_weight,
        turns=turns or (None,) * len(samples),
    )
