"""Numbers in few bits: rounding to them, scales that fit, what of a change is left, and overflow.

A change that is small beside the steps of a number format is rounded away where every number goes
to the nearest step. Where each goes up or down by chance, in proportion to how near it is, the
change is kept on the mean, with noise around it; ComfyUI patches 8-bit weights so too
(``comfy/float.py``).
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

EIGHT_BIT = (torch.float8_e4m3fn, torch.float8_e5m2)
_PART = 1 << 20
"""Numbers that are worked on at once; what is made of them takes several times their room."""

_SAME = 1e-6
"""What a number may be above the largest of a format: the rounding of stored value times scale."""


@dataclass(frozen=True, slots=True)
class Loss:
    """What rounding did to a change.

    Attributes:
        error: Norm of the difference between the stored and the exact change, over the norm of the
            exact one. By nearest steps of the base's own number format it is at most 1: all of the
            change is lost.
        kept: Share of the change that is there along its own direction: 1 is all of it, 0 nothing.
    """

    error: float
    kept: float


def rounded(values: Tensor, dtype: torch.dtype, generator: torch.Generator | None = None) -> Tensor:
    """Round numbers to a format.

    Args:
        values: Of a format with more bits.
        dtype: The wanted format. An 8-bit one takes its largest number for what is beyond it.
        generator: Rounds 8-bit formats up or down by chance; None goes to the nearest.
    """
    if dtype not in EIGHT_BIT:
        return values.to(dtype)
    largest = torch.finfo(dtype).max
    values = values.float().clamp(-largest, largest)
    if generator is not None:
        values = _by_chance(values, dtype, generator).clamp_(-largest, largest)
    return values.to(dtype)


def _by_chance(values: Tensor, dtype: torch.dtype, generator: torch.Generator) -> Tensor:
    """Round float32 to the steps of an 8-bit format, up as often as the step above is near.

    A float32 between two steps has them in its upper bits, and in its lower ones how far it is on
    the way. A random number in the place of the lower bits carries into the upper ones that often.
    """
    facts = torch.finfo(dtype)
    # Below the smallest normal number the steps no longer shrink; above it, up to its double, they
    # are the same, so that these numbers take the way there and back.
    small = values.abs() < facts.smallest_normal
    shift = torch.where(small, facts.smallest_normal, 0.0)
    bits = (values.abs() + shift).view(torch.int32)
    low = 1 << (23 + round(math.log2(facts.eps)))
    bits += torch.randint(low, bits.shape, generator=generator, dtype=torch.int32)
    bits &= -low
    return (bits.view(torch.float32) - shift).copysign_(values)


def fitting_scale(largest: Tensor, scale: Tensor, dtype: torch.dtype) -> Tensor:
    """Find a scale under which a weight fits into an 8-bit format, and that changes it least.

    The given scale is kept wherever the weight fits. Else it is doubled until it does: the steps
    of twice a scale are, but for the smallest numbers, among those of the scale itself, so that
    what the adapter leaves alone stays as it is. A scale made from the largest number would round
    every weight again.

    Args:
        largest: Largest absolute value that a scale is for, in the shape of the scale.
        scale: As it is stored.
        dtype: ``float8_e4m3fn`` or ``float8_e5m2``.

    Returns:
        Scales in the format and shape of the given ones.
    """
    limit = torch.finfo(dtype).max
    own, need = scale.double(), largest.double()
    doublings = (torch.log2(need / (own * limit)) - _SAME).ceil().clamp(min=0.0)
    fitting = torch.where(own > 0, own * torch.exp2(doublings), need / limit)
    fitting = torch.where(need == 0, own, fitting).to(scale.dtype)
    # A scale of zero was no scale; what replaces it may have been rounded down.
    short = fitting.double() * limit * (1.0 + _SAME) < need
    return torch.where(short, (fitting.double() * 2).to(scale.dtype), fitting)


def rounding_loss(before: Tensor, change: Tensor, after: Tensor) -> Loss:
    """Compare what is stored with what it should be.

    Args:
        before: The base's weight as numbers.
        change: What was to be added to it.
        after: What is stored, as numbers.

    Returns:
        What was lost; nothing for a change of zero.
    """
    missed = along = size = 0.0
    for part in slices_of_rows(before.shape[0], before[0].numel()):
        wanted = change[part].double()
        real = after[part].double() - before[part].double()
        missed += float((real - wanted).square().sum())
        along += float((real * wanted).sum())
        size += float(wanted.square().sum())
    if size == 0.0:
        return Loss(0.0, 1.0)
    return Loss((missed / size) ** 0.5, along / size)


def slices_of_rows(rows: int, columns: int) -> Iterator[slice]:
    """Cut rows into parts of about a million numbers."""
    step = max(1, _PART // max(1, columns))
    return (slice(start, min(rows, start + step)) for start in range(0, rows, step))


def all_finite(tensor: Tensor) -> bool:
    """Whether no value of a tensor is infinite or NaN, at the cost of adding its values up.

    ``torch.isfinite(tensor).all()`` takes thirty times as long: it makes a tensor of truths first.

    Args:
        tensor: Of any number format, shape and device.
    """
    if not tensor.is_floating_point():
        return True
    if tensor.dtype.itemsize == 1:
        tensor = tensor.float()  # torch does not add numbers of 8 bits
    # No sum with infinity or NaN in it is finite. Large values may add up to infinity, though.
    return math.isfinite(float(tensor.sum())) or bool(tensor.isfinite().all())
