"""Every optimizer that the run file can name."""

from __future__ import annotations

import importlib.util
import math
from collections.abc import Mapping, Sequence
from functools import partial

import torch

from ...adapters.parameter_groups import ParameterGroup
from ...config import OptimizerSection
from ...errors import InputError
from .adamw8bit import packed_bytes
from .joined_optimizer import set_rate
from .library_optimizers import (
    adafactor,
    adamw_schedule_free,
    bitsandbytes,
    came,
    prodigy,
    prodigy_schedule_free,
    torchao,
)
from .optimizer_kind import LARGE, PACKED, OptimizerKind
from .torch_optimizers import adamw, adamw8bit, lion, muon, sgd

_LION_PACE = 10 / 3
"""Each number moves by the whole rate in every step, AdamW's by a third of it or so."""


_SCALES = 4 / 256
"""Bytes for each number whose block of 256 has an fp32 scale."""


def _whole(shape: Sequence[int], count: int) -> float:
    """So many fp32 numbers for each."""
    return 4.0 * count * math.prod(shape)


def _packed(shape: Sequence[int], each: float, count: int) -> float:
    """So many numbers for each, in fewer bytes where the factor is large."""
    size = math.prod(shape)
    return count * size * (each if size >= PACKED else 4.0)


def _paged(shape: Sequence[int], each: float, count: int) -> float:
    """What cannot be moved to RAM."""
    size = math.prod(shape)
    if size < LARGE:
        return _packed(shape, each, count)
    # The scales of the blocks are not part of it.
    return 0.0 if each == 4 else count * size * _SCALES


def _rows_and_columns(shape: Sequence[int], whole: int, factored: int) -> float:
    """Fp32 numbers for each, and others for each row and column of the last two dimensions."""
    size = math.prod(shape)
    if len(shape) < 2:
        return 4.0 * (whole + min(factored, 1)) * size
    return 4.0 * (whole * size + factored * (size / shape[-1] + size / shape[-2]))


def _prodigy_schedule_free(shape: Sequence[int]) -> float:
    """The averaged factors, two numbers in bf16 for every eleventh, and rows and columns."""
    size = math.prod(shape)
    # It divides by the two longest sides, and what is small not at all.
    squares = _rows_and_columns(sorted(shape), 0, 1) if max(shape) >= 32 else 4.0 * size
    return 4.0 * size + 4.0 * size / 11 + squares


_bnb = partial(partial, bitsandbytes)

OPTIMIZERS: Mapping[str, OptimizerKind] = {
    "adamw": OptimizerKind(adamw, partial(_whole, count=2), pretended=True),
    "adamw8bit": OptimizerKind(adamw8bit, packed_bytes, pretended=True),
    "adamw_paged": OptimizerKind(
        _bnb(name="AdamW", bits=32, paged=True), partial(_paged, each=4, count=2), "bitsandbytes"
    ),
    "adamw8bit_paged": OptimizerKind(
        _bnb(name="AdamW", bits=8, paged=True),
        partial(_paged, each=1 + _SCALES, count=2),
        "bitsandbytes",
    ),
    "adamw4bit": OptimizerKind(
        partial(torchao, name="AdamW4bit"), partial(_packed, each=0.5 + 4 / 128, count=2), "torchao"
    ),
    "adamw_fp8": OptimizerKind(
        partial(torchao, name="AdamWFp8"), partial(_packed, each=1 + _SCALES, count=2), "torchao"
    ),
    "adamw_schedule_free": OptimizerKind(
        adamw_schedule_free, partial(_whole, count=2), "schedulefree"
    ),
    "lion": OptimizerKind(lion, partial(_whole, count=1), pace=_LION_PACE, pretended=True),
    "lion8bit": OptimizerKind(
        _bnb(name="Lion", bits=8, paged=False),
        partial(_packed, each=1 + _SCALES, count=1),
        "bitsandbytes",
        pace=_LION_PACE,
    ),
    "lion8bit_paged": OptimizerKind(
        _bnb(name="Lion", bits=8, paged=True),
        partial(_paged, each=1 + _SCALES, count=1),
        "bitsandbytes",
        pace=_LION_PACE,
    ),
    "adafactor": OptimizerKind(
        adafactor,
        partial(_rows_and_columns, whole=0, factored=1),
        "transformers",
        beta1_moment=True,
    ),
    "prodigy": OptimizerKind(
        prodigy, partial(_whole, count=3), "prodigyopt", pace=None, beta1_moment=True
    ),
    "prodigy_schedule_free": OptimizerKind(
        prodigy_schedule_free, _prodigy_schedule_free, "prodigyplus", pace=None
    ),
    "came": OptimizerKind(came, partial(_rows_and_columns, whole=1, factored=2), "came_pytorch"),
    # The momentum of matrices, the two moments of the rest.
    "muon": OptimizerKind(muon, lambda shape: _whole(shape, 1 if len(shape) == 2 else 2)),
    "sgd": OptimizerKind(sgd, partial(_whole, count=0), pace=None, beta1_moment=True),
}
"""By their names in the run file."""


def require_optimizer(name: str) -> None:
    """Make sure that what an optimizer needs is installed, before anything is loaded.

    Raises:
        InputError: When it is not.
    """
    package = OPTIMIZERS[name].package
    if package and importlib.util.find_spec(package) is None:
        raise InputError(
            f"training.optimizer.name is {name}, and {package} is not installed",
            f"the package {package}",
            'Install it: pip install "adapter-trainer[optimizers]", or set '
            "training.optimizer.name to adamw.",
        )


def make_optimizer(
    settings: OptimizerSection, groups: Sequence[ParameterGroup]
) -> torch.optim.Optimizer:
    """Build the optimizer that the run file names.

    Args:
        groups: The adapter's parameters, float32, in a fixed order.

    Returns:
        A torch optimizer with the same groups; `set_learning_rate` is called before each step.

    Raises:
        InputError: When a package is not installed.
    """
    require_optimizer(settings.name)
    return OPTIMIZERS[settings.name].build(
        settings,
        [
            {
                "params": list(group.parameters),
                "lr": settings.learning_rate,
                "rate": group.rate,
                "weight_decay": settings.weight_decay * group.decay if group.decays else 0.0,
                "magnitudes": not group.decays,
            }
            for group in groups
        ],
    )


def set_learning_rate(optimizer: torch.optim.Optimizer, learning_rate: float) -> None:
    """Give each of an optimizer's groups its share of the run's learning rate."""
    for group in optimizer.param_groups:
        set_rate(group, learning_rate * group.get("rate", 1.0))
