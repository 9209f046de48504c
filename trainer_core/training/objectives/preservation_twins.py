"""Prior preservation at the run's own noisy latents: what the base predicts there, in each step.

A twin is a sample of the step once more, with the same noise and noise level. Its text is the empty
one, or its caption with the class word for the trigger word; its target is what the base predicts
there without the adapter, in the same step. So the adapter is free where the own caption is, and
held right beside it.

A twin takes the place of a sample, as other points that the base is held to do, so that a step has
as many passes with a gradient as before. What it adds is one pass of the twins without gradient and
adapter, of which nothing is kept but the velocity.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from ...adapters import AttachedAdapter
from ...config import RunConfig
from ...data.batch_plan import BatchPlan
from ...data.cache.cached_dataset import CachedDataset
from ...data.choose_view import Views
from ...data.load_batch import make_batch
from ...device import send
from ...types import Batch, SampleTurn
from ..step.micro_batch import Points, Predict


@dataclass(frozen=True, slots=True)
class Twins:
    """Reads the samples beside which the base is held.

    Attributes:
        part: ``(index, count)`` of this process's part of each pass.
        wanted: Of each sample, whether it has twins before others.
        blank: Whether the base is held to the empty text, or to that with the class word.
        sound_weight: Factor on the loss of sound.
    """

    dataset: CachedDataset
    plan: BatchPlan
    views: Views
    part: tuple[int, int]
    wanted: Sequence[bool]
    blank: bool
    sound_weight: float = 1.0

    @classmethod
    def of(
        cls, config: RunConfig, dataset: CachedDataset, plan: BatchPlan, part: tuple[int, int]
    ) -> Twins | None:
        """Those that a run file asks for; None where it asks for none."""
        settings = config.dataset.preservation
        if not settings.asks_base:
            return None
        blank = settings.kind == "blank"
        # Ordinary images hold the base already, and have no trigger word.
        forms = dataset.items.forms
        fit = [not form.regularization if blank else form.class_texts > 0 for form in forms]
        views = Views.of(config.dataset, config.seed)
        wanted, sound = dataset.items.each(fit), config.training.loss.sound
        return cls(dataset, plan, views, part=part, wanted=wanted, blank=blank, sound_weight=sound)

    def __call__(self, step: int, micro: int) -> tuple[Batch, int] | None:
        """Read the twins of a pass.

        Args:
            step: From 1.
            micro: The pass, from 0.

        Returns:
            The samples with the text that the base is given, and the step whose draws of noise and
            noise level are theirs; None where the pass has no twin.

        Raises:
            StorageError: When a cached file is damaged.
        """
        twins = self.plan.twins(step, micro, self.part, self.wanted)
        if not twins:
            return None
        samples = [
            self.dataset.load(
                each.index,
                self.views.ordinary(
                    self.dataset.items[each.index], each.step, each.turn, blank=self.blank
                ),
            )
            for each in twins
        ]
        # All of the image is held, also where a mask says that it does not count.
        samples = [replace(each, mask=None) for each in samples]
        batch = make_batch(
            samples,
            tuple(each.position for each in twins),
            sound_weight=self.sound_weight,
            turns=tuple(None if e.is_further else SampleTurn(e.index, e.turn) for e in twins),
        )
        return batch, twins[0].step


@contextlib.contextmanager
def without_adapter(adapter: AttachedAdapter) -> Iterator[None]:
    """Have a module compute exactly the base, as it is in training, for a while."""
    strength = adapter.strength
    adapter.strength = 0.0
    try:
        yield
    finally:
        adapter.strength = strength


@dataclass(frozen=True, slots=True)
class BaseAnswers:
    """Asks the base for the targets of twins.

    Attributes:
        predict: The raw output of the run's base with its adapter.
        adapter: Switched off meanwhile.
        passes: As `Processes.passes`: a base in parts answers all processes or none.
    """

    predict: Predict
    adapter: AttachedAdapter
    device: torch.device
    passes: Callable[[int], int] = lambda own: own

    @torch.no_grad()
    def __call__(
        self, joined: Sequence[Points], step: int, micro: int, part: int = 0
    ) -> Sequence[Points]:
        """Fill in the targets that are missing.

        Args:
            joined: What goes through the base, one pass each.

        Returns:
            The same, with what the base predicts as the target of the last ``asked`` of each.
        """
        del step, micro, part
        own = sum(each.base_targets > 0 for each in joined)
        wanted = self.passes(own)
        if not wanted:
            return joined
        with without_adapter(self.adapter):
            answered = [self._answered(each) if each.base_targets else each for each in joined]
            for _ in range(wanted - own):
                self._velocity(joined[0], 1)
        return answered

    def _answered(self, points: Points) -> Points:
        velocity = self._velocity(points, points.base_targets).to(points.target.dtype)
        known = points.target[: -points.base_targets]
        whole = torch.cat([send(known, self.device), velocity]) if len(known) else velocity
        return replace(points, target=whole, base_targets=0)

    def _velocity(self, points: Points, count: int) -> Tensor:
        """What the base predicts at the last of some points, `[count, C, h, w]`."""
        whole = len(points.sigmas)
        return self.predict(*points.part(whole - count, whole).inputs(self.device))
