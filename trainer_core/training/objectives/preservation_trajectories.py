"""Prior preservation at points that the base passes while it samples, before training.

Before the first step the frozen base makes an image of each preservation prompt (the kinds
``trajectory`` and ``class``; the others are in `preservation_twins`). Every sampling step on the
way gives one point: noisy latents, the noise level, the prompt, and the raw output of the base
there. While the adapter trains, a share of each batch consists of such points, with that output
as the target. They lie where the base is asked when images are made; their loss
is zero as long as the adapter changes nothing there; and no second model is needed, because the
outputs are computed once and cached.

Source of the idea: Ruiz et al., DreamBooth (2022), section 4.2, with images of the base instead of
points on their way; Li and Hoiem, Learning without Forgetting (2016), for the base's own outputs as
targets.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from ...config import RunConfig
from ...counters import counter_seed
from ...data.cache.cache_file import Entry, is_sound, make_entry, write_entry
from ...data.cache.cached_dataset import CachedDataset, EntryMemory
from ...data.cache.cached_item import PreservedItem
from ...data.cache.item_columns import hex_keys
from ...data.cache.remove_unused import UseMark
from ...diffusion.parameterization import FLOW, Parameterization
from ...families.family import Family
from ...inference.sampler import evaluating
from ...types import Conditioning, PreservedBatch
from ...weights.base_location import BaseLocation

KIND, SLIDER = "preserved", "slider"
"""Folders of the cache that the outputs are kept in: of points, and of a slider's images."""

_OUTPUTS = "velocities"
"""Their name in it, which is older than outputs that are not velocities."""


@dataclass(frozen=True, slots=True)
class Trajectory:
    """The way of one image of the base, from noise to the image.

    Attributes:
        item: Its prompt and control images.
        entry: Where the base's outputs are cached: `[steps, C, h, w]` or `[steps, C, f, h, w]`.
        seed: Of its first noise.
        parameterization: What the outputs stand for.
    """

    item: PreservedItem
    entry: Entry
    shape: tuple[int, ...]
    seed: int
    parameterization: Parameterization = FLOW

    def noise(self) -> Tensor:
        """Standard normal, float32."""
        return torch.randn(self.shape, generator=torch.Generator().manual_seed(self.seed))

    def first(self, sigmas: Tensor) -> Tensor:
        """The first latents, float32."""
        return self.parameterization.start(self.noise(), float(sigmas[0]))

    def after(self, step: int, latents: Tensor, output: Tensor, sigmas: Tensor) -> Tensor:
        """Latents after a sampling step, from those before it and the output there."""
        sigma, following = sigmas[step], sigmas[step + 1]
        velocity = self.parameterization.velocity(output.float(), latents, sigma)
        return latents + (following - sigma) * velocity

    def before(self, step: int, outputs: Tensor, sigmas: Tensor) -> Tensor:
        """Latents before a sampling step, from the outputs of those before it."""
        latents = self.first(sigmas)
        for index in range(step):
            latents = self.after(index, latents, outputs[index], sigmas)
        return latents


@dataclass(frozen=True, slots=True)
class Preservation:
    """All points that a run holds its base to.

    Attributes:
        trajectories: One for each prompt.
        sigmas: `[steps + 1]`: the noise levels of each, from the strongest to 0.
        seed: The run's seed; the order of the points follows from it.
        mark: Keeps other processes from removing what is read of the cache.
    """

    trajectories: tuple[Trajectory, ...]
    sigmas: Tensor
    memory: EntryMemory
    seed: int
    mark: UseMark | None = None

    def __len__(self) -> int:
        return len(self.trajectories) * (len(self.sigmas) - 1)

    def image(self, number: int) -> Tensor:
        """The latents that a trajectory, counted from 0, ends with: `[C, h, w]`, float32.

        Raises:
            StorageError: When its cached file is damaged or gone.
        """
        trajectory = self.trajectories[number]
        outputs = self.memory.read(trajectory.entry)[_OUTPUTS]
        return trajectory.before(len(outputs), outputs, self.sigmas)

    def batch(self, numbers: Sequence[int]) -> PreservedBatch:
        """Read points.

        Args:
            numbers: Which ones of the run, counted from 0; the points are gone through again and
                again, each time in another order.

        Raises:
            StorageError: When a cached file is damaged or gone.
        """
        chosen = [self._point(number) for number in numbers]
        points = [self._read(trajectory, step) for trajectory, step in chosen]
        controls = [
            [self.memory.read(entry)["latents"] for entry in trajectory.item.controls]
            for trajectory, _ in chosen
        ]
        return PreservedBatch(
            names=tuple(f"base: {trajectory.item.prompt!r}" for trajectory, _ in chosen),
            noisy=torch.stack([noisy for noisy, _ in points]),
            sigmas=tuple(float(self.sigmas[step]) for _, step in chosen),
            output=torch.stack([output for _, output in points]),
            controls=tuple(torch.stack(same) for same in zip(*controls, strict=True)),
            conditionings=tuple(self.memory.read(each.item.text) for each, _ in chosen),
        )

    def _point(self, number: int) -> tuple[Trajectory, int]:
        turn, place = divmod(number, len(self))
        index, step = divmod(_order(self.seed, turn, len(self))[place], len(self.sigmas) - 1)
        return self.trajectories[index], step

    def _read(self, trajectory: Trajectory, step: int) -> tuple[Tensor, Tensor]:
        outputs = self.memory.read(trajectory.entry)[_OUTPUTS]
        return trajectory.before(step, outputs, self.sigmas), outputs[step]


def plan_trajectories(
    config: RunConfig,
    family: Family,
    location: BaseLocation,
    dataset: CachedDataset,
    folder: Path,
    base: str,
    *,
    slider: bool = False,
) -> Preservation | None:
    """Name the images that the base makes before the first step.

    Args:
        base: What decides the base's predictions: identity of its weights, and the precision.
        slider: Whether these are a slider's, of the neutral prompt of each sample of the dataset,
            and not the points that the base is held to.

    Returns:
        The images, cached or not; None where a run has none.
    """
    items: Sequence[PreservedItem] = ()
    if slider:
        kind, steps = SLIDER, config.dataset.slider.steps
        if dataset.slider:
            items = [PreservedItem(e.name, e.bucket, (), e.text) for e in dataset.items]
    else:
        kind, steps = KIND, config.dataset.preservation.steps
        # A finished cache may have prompts for another kind.
        if config.dataset.preservation.holds("trajectory", "class"):
            items = dataset.preserved
    if not items:
        return None
    size, guidance = items[0].bucket, config.training.guidance
    sigmas = family.sampling_sigmas(location, steps, size.width, size.height).cpu()
    shape = family.latent_shape(
        location, size.width, size.height, layers=items[0].layers, frames=size.frames
    )
    # One base may be given with several parameterizations; what is cached of flow stays known.
    means = (
        []
        if family.prediction.parameterization == FLOW
        else [repr(family.prediction.parameterization)]
    )
    way = json.dumps([base, guidance, [f"{sigma:.8f}" for sigma in sigmas.tolist()], *means])
    trajectories: list[Trajectory] = []
    for number, item in enumerate(items):
        keys = [entry.key for entry in (item.text, *item.controls)]
        entry = make_entry(folder, kind, way, number, *shape, *keys)
        # The same noise in every run, so that runs with other seeds find what is cached.
        seed = counter_seed(0, kind, number)
        trajectories.append(
            Trajectory(
                item, entry, shape, seed=seed, parameterization=family.prediction.parameterization
            )
        )
    # Before it is looked which of them are there: from here on nobody removes them.
    mark = UseMark(folder, hex_keys(each.entry.key for each in trajectories))
    return Preservation(tuple(trajectories), sigmas, dataset.memory, seed=config.seed, mark=mark)


@torch.no_grad()
def compute_missing(
    preservation: Preservation,
    predict: Callable[[Tensor, Tensor, Sequence[Conditioning], Sequence[Tensor]], Tensor],
    transformer: torch.nn.Module,
    device: torch.device,
    batch_size: int,
    notify: Callable[[int, int], None],
) -> int:
    """Let the frozen base make the images that are not cached.

    Args:
        transformer: The base, without an adapter.
        batch_size: How many images are made at once.
        notify: Called with passes done and passes in all; what it raises stops the work.

    Returns:
        Number of passes through the base.

    Raises:
        StorageError: When the cache cannot be written.
    """
    missing = [each for each in preservation.trajectories if not is_sound(each.entry)]
    steps = len(preservation.sigmas) - 1
    total, done = len(missing) * steps, 0
    with evaluating(transformer):
        for start in range(0, len(missing), batch_size):
            group = missing[start : start + batch_size]
            texts = [preservation.memory.read(each.item.text) for each in group]
            controls = [
                torch.stack(same).to(device)
                for same in zip(
                    *(
                        [preservation.memory.read(e)["latents"] for e in each.item.controls]
                        for each in group
                    ),
                    strict=True,
                )
            ]
            latents = torch.stack([each.first(preservation.sigmas) for each in group])
            outputs: list[Tensor] = []
            for index in range(steps):
                sigma = preservation.sigmas[index].expand(len(group)).to(device)
                output = predict(latents.to(device), sigma, texts, controls).cpu()
                outputs.append(output)
                # On the CPU, as the points are read later: the same latents to the last bit.
                latents = group[0].after(index, latents, output, preservation.sigmas)
                done += len(group)
                notify(done, total)
            for each, way in zip(group, torch.stack(outputs, dim=1), strict=True):
                write_entry(each.entry, {_OUTPUTS: way})
    return total


@functools.lru_cache(maxsize=4)
def _order(seed: int, turn: int, length: int) -> tuple[int, ...]:
    places = range(length)
    return tuple(sorted(places, key=lambda place: counter_seed(seed, KIND, "order", turn, place)))
