"""A concept slider: the adapter is trained with both signs of its strength, and without images.

At noisy images of a neutral prompt the frozen base is asked three times: what it predicts for the
neutral prompt, for the positive and for the negative one. With strength 1 the adapter is to predict
the neutral answer moved along the difference of the other two, with strength -1 the same moved
against it::

    target = v_neutral + sign * strength * (v_positive - v_negative)

So what its strength does in between, and beyond, is a scale. The noisy images are those that the
base itself makes of the neutral prompts, before the first step.

Source: Gandikota et al., Concept Sliders (2023), equation 7, with a velocity for their score, and
Liu et al., Compositional Visual Generation (2022), for sums of scores.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from ...adapters import AttachedAdapter
from ...device import send
from ...types import Conditioning
from ..step.micro_batch import Points, Predict
from .preservation_trajectories import Preservation
from .preservation_twins import without_adapter

_IN_MEMORY = 64


def made_images(images: Preservation) -> Callable[[int], Tensor]:
    """The latents of images that the base has made, by their numbers from 0; some are kept."""
    return functools.lru_cache(maxsize=_IN_MEMORY)(images.image)


@contextlib.contextmanager
def restoring_strength(adapter: AttachedAdapter) -> Iterator[None]:
    """Give an adapter its strength back that a step turns over."""
    strength = adapter.strength
    try:
        yield
    finally:
        adapter.strength = strength


@dataclass(slots=True)
class SliderAnswers:
    """Asks the base for the targets of a slider, and turns the adapter to the side that is trained.

    Two micro-batches in a row train the same noisy samples: the first with strength 1, the second
    with -1. The base is asked for both at once. The strength stays as it is when this returns,
    because a checkpointed block computes again in the backward pass: whoever makes a step gives it
    back (`restoring_strength`).

    Attributes:
        predict: The raw output of the run's base with its adapter.
        adapter: Switched off meanwhile, and then turned over.
        strength: How far the target is moved, as a multiple of the difference.
        has_negative: Whether the negative prompt is another than the neutral one.
        passes: As `Processes.passes`: a base in parts answers all processes or none.
    """

    predict: Predict
    adapter: AttachedAdapter
    device: torch.device
    strength: float
    has_negative: bool
    passes: Callable[[int], int] = lambda own: own
    _asked: tuple[int, int, int, int] | None = field(default=None, init=False)
    _answers: tuple[Tensor, Tensor] | None = field(default=None, init=False)

    @torch.no_grad()
    def __call__(
        self, joined: Sequence[Points], step: int, micro: int, part: int = 0
    ) -> Sequence[Points]:
        """Fill in the targets, and turn the adapter over.

        Args:
            joined: What goes through the base, one pass each. The samples of a slider come first.
            step: Optimizer step, from 1.
            micro: Micro-batch within the step, from 0; even ones are trained with strength 1.
            part: Of the micro-batch, from 0. Where there are several, each is asked for again on
                its second side.

        Returns:
            The same with their targets. What the base is held to beside keeps its own.
        """
        pair, side = divmod(micro, 2)
        # A step may begin again in parts, where a whole one did not fit.
        key = (step, pair, part, len(joined[0].sigmas))
        if self._asked != key:
            self._asked, self._answers = key, self._ask(joined)
        sign = 1.0 if side == 0 else -1.0
        # Who has switched the adapter off wants to see the base.
        if self.adapter.strength:
            self.adapter.strength = sign
        if self._answers is None:
            return joined
        neutral, difference = self._answers
        target = neutral + sign * self.strength * difference
        first, *others = joined
        held = first.target[len(target) :]
        whole = torch.cat([target, send(held, self.device)]) if len(held) else target
        return [replace(first, target=whole), *others]

    def _ask(self, joined: Sequence[Points]) -> tuple[Tensor, Tensor] | None:
        """What the base says to the neutral prompts, and between the others; both `[n, ...]`."""
        first = joined[0]
        own = int(bool(first.directions))
        wanted = self.passes(own)
        if not wanted:
            return None
        with without_adapter(self.adapter):
            if own:
                return self._between(first)
            # Passes that are made for other processes alone.
            for _ in range(wanted * (3 if self.has_negative else 2)):
                self._velocity(first, first.conditionings[:1])
        return None

    def _between(self, points: Points) -> tuple[Tensor, Tensor]:
        count = len(points.directions)
        neutral = self._velocity(points, points.conditionings[:count])
        positive = self._velocity(points, [each for each, _ in points.directions])
        if not self.has_negative:
            return neutral, positive - neutral
        negative = self._velocity(points, [each for _, each in points.directions])
        return neutral, positive - negative

    def _velocity(self, points: Points, texts: Sequence[Conditioning]) -> Tensor:
        """What the base predicts at the first of some points, `[n, C, h, w]`, float32."""
        at_texts = replace(points.part(0, len(texts)), conditionings=tuple(texts))
        return self.predict(*at_texts.inputs(self.device)).to(points.target.dtype)
