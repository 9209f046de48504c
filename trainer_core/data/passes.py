"""What goes through the base together."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from ..types import Bucket


@dataclass(frozen=True, slots=True)
class Pass:
    """What goes through the base together.

    Attributes:
        indices: Samples of one size; empty where all of it preserves the base.
        turns: How often each of them was trained before in the run.
        first: Place of the first of them in the step.
        preserved: Numbers of the preservation points, counted over the whole run.
    """

    indices: tuple[int, ...]
    turns: tuple[int, ...]
    first: int
    preserved: range


@dataclass(frozen=True, slots=True)
class Part:
    """What one process computes of a pass.

    Attributes:
        indices: Its samples.
        turns: How often each of them was trained before in the run.
        positions: Their places in the step.
        preserved: Numbers of its preservation points.
        idle: Whether it has none of the pass, and computes a sample that counts for nothing, so
            that all processes make equally many passes.
    """

    indices: tuple[int, ...]
    turns: tuple[int, ...]
    positions: tuple[int, ...]
    preserved: tuple[int, ...] = ()
    idle: bool = False


@dataclass(frozen=True, slots=True)
class Twin:
    """A sample that is trained, once more, to hold the base at its noisy latents.

    Attributes:
        index: The sample.
        turn: How often it was trained before in the run.
        step: The step that trains it, the twin's own or one before it.
        position: Its place there. Turn or place name its noise and noise level. A second twin of
            it has a place behind all of the step, and the noise of that place.
        is_further: Whether it is such a second one.
    """

    index: int
    turn: int
    step: int
    position: int
    is_further: bool = False

    def again(self, further: int) -> Twin:
        """The same sample with the noise of a place so many further; 0 for its own."""
        return replace(self, position=self.position + further, is_further=further > 0)


@dataclass(frozen=True, slots=True)
class Group:
    """Samples that may share a pass.

    Attributes:
        bucket: Their size.
        indices: Which ones, in order.
        batch_size: The most of them in a pass.
        own: How many of them a full step trains; the rest of it preserves the base.
        preserved: How many points of a full step preserve it.
        appearances: How many samples an epoch has of them, repeats counted.
    """

    bucket: Bucket
    indices: NDArray[np.int32]
    batch_size: int
    own: int
    preserved: int
    appearances: int

    @property
    def full_steps(self) -> int:
        """Steps of an epoch that train these samples alone."""
        return self.appearances // self.own

    @property
    def batches(self) -> int:
        """Passes through the base in an epoch, where no step cuts what is left of the group."""
        left = self.appearances % self.own
        return self.full_steps * -(-self.own // self.batch_size) + -(-left // self.batch_size)
