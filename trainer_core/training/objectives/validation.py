"""The loss on held-out images, at noise and noise levels that are the same each time.

Every held-out image is measured at the same few noise levels, the quantiles of those that the run
trains at, with the same noise. So two numbers differ by what was learned between them alone.
As many trained images are measured in the same way: what lies between the two losses is what the
adapter has learned by heart. Nothing here draws from a generator that training draws from: a run
trains the same bits with it and without.
"""

from __future__ import annotations

import contextlib
import math
import traceback
from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from ...config.folders import MaskSection
from ...counters import counter_seed
from ...data.cache.cached_dataset import CachedDataset
from ...data.load_batch import make_batch
from ...device import is_out_of_memory, release_memory
from ...diffusion.parameterization import FLOW, Parameterization
from ...inference.sampler import evaluating
from ...types import Batch, StepResult
from ..memory.device_errors import first_line
from ..step.micro_batch import Points, noisy_points
from ..step.processes import Processes
from ..step.read_ahead import ReadAhead

Levels = Callable[[Batch], Sequence[float]]
"""The noise levels that a batch is measured at."""


@dataclass(frozen=True, slots=True)
class ValidationResult:
    """The loss on held-out images, and on as many trained ones; None where it was not measured.

    Attributes:
        cancelled: Whether the run was cancelled meanwhile.
        stop: Whether the run is to end with its adapter, because it gets no better.
    """

    loss: float | None = None
    trained_loss: float | None = None
    cancelled: bool = False
    stop: bool = False

    def add_to(self, result: StepResult) -> StepResult:
        """A step's result with the losses that were measured after it."""
        return replace(result, validation_loss=self.loss, trained_loss=self.trained_loss)


@dataclass(frozen=True, slots=True)
class ValidationSetup:
    """How samples are measured.

    Attributes:
        batch_sizes: Of each sample, the most that share a pass.
        levels: The noise levels of a batch.
        count: How many noise levels there are.
        mask: What masks weigh.
        parameterization: What the raw output stands for.
        sound_weight: Factor on the loss of sound.
    """

    batch_sizes: Sequence[int]
    levels: Levels
    count: int
    mask: MaskSection
    parameterization: Parameterization = FLOW
    sound_weight: float = 1.0

    def of(self, dataset: CachedDataset, indices: Sequence[int]) -> FixedSamples | None:
        """Put samples into batches; None where there are none."""
        groups: dict[Hashable, list[int]] = {}
        for index in indices:
            item, size = dataset.items[index], self.batch_sizes[index]
            groups.setdefault((item.bucket, item.kind, size), []).append(index)
        batches = [
            tuple(group[start : start + self.batch_sizes[group[0]]])
            for group in groups.values()
            for start in range(0, len(group), self.batch_sizes[group[0]])
        ]
        return FixedSamples(dataset, tuple(batches), self) if batches else None


@dataclass(frozen=True, slots=True)
class FixedSamples:
    """Samples that are measured alike each time, in the batches that they are measured in.

    Attributes:
        dataset: The encoded samples.
        batches: Indices of samples that share a pass.
    """

    dataset: CachedDataset
    batches: tuple[tuple[int, ...], ...]
    setup: ValidationSetup

    @property
    def images(self) -> int:
        """How many images they are; one of several sizes counts once."""
        return len({self.dataset.items[index].name for each in self.batches for index in each})

    @property
    def passes(self) -> int:
        """Passes through the base of one measurement."""
        return len(self.batches) * self.setup.count

    @property
    def size(self) -> int:
        """Points of one measurement."""
        return self.setup.count * sum(map(len, self.batches))

    def points(self, number: int) -> Points:
        """What goes through the base in a pass, from 0."""
        setup = self.setup
        at, level = divmod(number, setup.count)
        indices = self.batches[at]
        # As it is: the first caption, none dropped, with its control images and not mirrored.
        samples = [self.dataset.load(index) for index in indices]
        places = tuple(range(len(samples)))
        batch = make_batch(samples, places, setup.mask, sound_weight=setup.sound_weight)
        marks = [(each.name, each.bucket.width, each.bucket.height, level) for each in samples]
        noise = _noises(batch.latents, marks)
        heard = [("sound", *each) for each in marks]
        of_sound = None if batch.sounds is None else _noises(batch.sounds, heard)
        sigmas = (setup.levels(batch)[level],) * len(samples)
        return noisy_points(
            batch, sigmas, noise, parameterization=setup.parameterization, noise_of_sound=of_sound
        )


def _noises(latents: Tensor, marks: Sequence[tuple[str | int, ...]]) -> Tensor:
    # Named by the image alone: the same in every run, whatever else is in the dataset.
    noise = torch.empty(latents.shape)
    for row, names in zip(noise, marks, strict=True):
        seed = counter_seed(0, "validation", *names)
        row.normal_(generator=torch.Generator().manual_seed(seed))
    return noise


def hold_out(dataset: CachedDataset, most: int, setup: ValidationSetup) -> FixedSamples | None:
    """Choose the held-out samples that are measured.

    Args:
        most: The most images; of more, the same ones in every run.

    Returns:
        None where no sample is held out.
    """
    held = [index for index, is_held in enumerate(dataset.validations) if is_held]
    return setup.of(dataset, _chosen(dataset, held, most, "held out"))


def trained_alike(
    dataset: CachedDataset, held: FixedSamples, setup: ValidationSetup
) -> FixedSamples | None:
    """Choose as many trained images as are held out, the same ones in every run.

    Ordinary images are none of them: what is held out is of the own ones.

    Returns:
        None where nothing but ordinary images is trained.
    """
    forms = dataset.items.forms
    own = dataset.items.each([not (each.regularization or each.validation) for each in forms])
    trained = [
        index
        for index, (is_own, repeats) in enumerate(zip(own, dataset.repeats, strict=True))
        if is_own and repeats
    ]
    return setup.of(dataset, _chosen(dataset, trained, held.images, "trained alike"))


def _chosen(dataset: CachedDataset, indices: Sequence[int], most: int, what: str) -> list[int]:
    """The samples of so many images, chosen by their names alone."""
    names = {dataset.items[index].name for index in indices}
    chosen = set(sorted(names, key=lambda name: counter_seed(0, what, name))[:most])
    return [index for index in indices if dataset.items[index].name in chosen]


@dataclass(frozen=True, slots=True)
class Validation:
    """Measures the loss on held-out samples; every process calls it at the same steps.

    Attributes:
        trained: Trained samples that are measured besides, to compare with.
        loss: Summed loss of the points of a pass.
        warn: Told in one line why nothing was measured.
    """

    held: FixedSamples
    trained: FixedSamples | None
    loss: Callable[[Points], Tensor]
    transformer: torch.nn.Module
    processes: Processes
    cancelled: Callable[[], bool]
    warn: Callable[[str], None]

    def __call__(self, step: int) -> ValidationResult:
        """Measure.

        Returns:
            The mean over images and noise levels, of the loss that training has without weights.
        """
        totals, counts, full = [0.0, 0.0], [0, 0], ""
        with torch.no_grad(), evaluating(self.transformer):
            try:
                for part, loss, count in self._losses():
                    totals[part] += loss
                    counts[part] += count
            except Exception as error:
                if self.processes.sharded or not is_out_of_memory(error):
                    raise
                full = first_line(error)
                # The error's frames hold what filled the device.
                traceback.clear_frames(error.__traceback__)
        if full:
            release_memory(self.processes.device)
        numbers = [*totals, *map(float, counts), float(bool(full)), float(self.cancelled())]
        *sums, failed, stopped = self.processes.sum_numbers(numbers)
        reason = f"the device's memory is full ({full})" if failed else ""
        finite = all(math.isfinite(total) for total in sums[:2])
        reason = reason or ("" if finite else "it is not a finite number")
        if reason:
            self.warn(f"No loss on held-out images at step {step}: {reason}.")
            return ValidationResult(cancelled=stopped > 0)
        if sums[2:] != [0 if each is None else each.size for each in self._parts]:
            return ValidationResult(cancelled=stopped > 0)
        held, trained = (
            total / (count or 1) for total, count in zip(sums[:2], sums[2:], strict=True)
        )
        return ValidationResult(held, None if self.trained is None else trained, stopped > 0)

    @property
    def passes(self) -> int:
        """Passes through the base of one measurement."""
        return sum(each.passes for each in self._parts if each is not None)

    @property
    def _parts(self) -> tuple[FixedSamples, FixedSamples | None]:
        return self.held, self.trained

    def _points(self, number: int) -> tuple[int, Points]:
        """What goes through the base in a pass, and to which part it belongs."""
        if number < self.held.passes or self.trained is None:
            return 0, self.held.points(number)
        return 1, self.trained.points(number - self.held.passes)

    def _losses(self) -> Iterator[tuple[int, float, int]]:
        index, count, passes = self.processes.index, self.processes.count, self.passes
        mine = list(range(index, passes, count))
        # A pass through a base in parts takes all processes.
        rounds = -(-passes // count) if self.processes.sharded else len(mine)

        def make(number: int, _: int) -> tuple[int, Points]:
            return self._points(min(number * count + index, passes - 1))

        def following(number: int, _: int) -> tuple[int, int] | None:
            return (number + 1, 0) if number + 1 < rounds else None

        with contextlib.closing(ReadAhead(make, following)) as ahead:
            for number in range(rounds):
                if self._is_cancelled():
                    return
                part, points = ahead(number, 0)
                loss = float(self.loss(points))
                if number < len(mine):
                    yield part, loss, len(points.sigmas)

    def _is_cancelled(self) -> bool:
        cancelled = self.cancelled()
        if not self.processes.sharded:
            return cancelled
        return self.processes.sum_numbers([float(cancelled)])[0] > 0
