"""A file's layer by names and shapes alone: its rank, and whether its factors make a whole.

Whether they make a whole is said here; nothing is read.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path

import torch
from torch import Tensor

from ...adapters.dora_magnitude import DORA_SCALE
from ...adapters.kinds.file_rules import FactorPair, FileRules
from ...adapters.kinds.registry import FILE_RULES
from ...errors import AdapterFileError
from ...tensors.safetensors_reader import broken
from ...tensors.safetensors_writer import TensorInfo
from ...types import LayerState
from ..names.key_layouts import MAGNITUDE

_LARGEST_RANK = 2**31
"""Beyond what a rank can be; some programs write such an alpha where none has an effect."""

_FLOATS = (torch.float64, torch.float32, torch.float16, torch.bfloat16)


def outline_factor(path: Path, key: str, role: str, info: TensorInfo) -> Tensor:
    """The outline of a factor or a magnitude, in the number format and shape that it is kept in.

    Formats of 8 bits, in which nothing is computed, become bfloat16, which holds all their values.

    Raises:
        AdapterFileError: When it is not a factor of a layer that can be adapted.
    """
    shape, floats = info.shape, info.dtype.is_floating_point
    if role in (DORA_SCALE, MAGNITUDE):
        shape = _magnitude_shape(role, shape)
    if not 2 <= len(shape) <= 5 or 0 in shape or not floats:
        raise AdapterFileError(
            f"{path}: {key} is {info.dtype} of shape {info.shape}",
            "a floating-point matrix, with up to three axes more for a convolution's window",
            "Only adapters of Linear layers and of convolutions can be read.",
        )
    dtype = info.dtype if info.dtype in _FLOATS else torch.bfloat16
    return torch.empty(shape, dtype=dtype, device="meta")


def outline_layer(
    path: Path, name: str, kind: str, factors: Mapping[str, Tensor], alpha: float | None
) -> LayerState:
    """Put a layer together from the outlines of its factors, DoRA's magnitude among them.

    All factors are in one number format that holds each of theirs; a magnitude stays in its own. An
    alpha of None or 0 means the rank.

    Raises:
        AdapterFileError: When a factor is missing or too many, or the shapes do not fit.
    """
    rules = FILE_RULES[kind]
    if set(factors) - {DORA_SCALE} not in rules.factor_sets():
        raise broken(path, f"{name} has only {', '.join(sorted(factors))}; a factor is missing")
    for pair in rules.pairs:
        _check_pair(path, name, pair, factors)
    factors = rules.own_form(_without_windows(rules, factors))
    mistake = rules.mistake(factors)
    if mistake:
        raise AdapterFileError(
            f"{path}: {name} {mistake}",
            f"the factors of one {rules.title} for each layer",
            "Export or download it again; of another kind, use it with the program that made it.",
        )
    dtype = None
    for role, factor in factors.items():
        # A magnitude is kept finer than factors, which need not follow them.
        if role != DORA_SCALE:
            dtype = factor.dtype if dtype is None else torch.promote_types(dtype, factor.dtype)
    same = {role: f if role == DORA_SCALE else f.to(dtype) for role, f in factors.items()}
    if DORA_SCALE in same and not _magnitude_fit(same[DORA_SCALE], rules.sizes(same)):
        found = tuple(same[DORA_SCALE].shape)
        raise broken(path, f"{name}: a dora_scale of shape {found} does not fit its factors")
    same = _without_magnitude_window(rules, same)
    rank = rules.alpha_rank(same)
    if rank is None:
        return _whole_layer(rules, same, alpha)
    if alpha is not None and not math.isfinite(alpha):
        raise broken(path, f"{name}.alpha is {alpha}")
    return LayerState(same, float(alpha or rank), rank)


def _without_windows(rules: FileRules, factors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Leave out windows of one place that kohya's and LyCORIS's files have at factors of a Linear.

    ComfyUI takes no such window there. The first factor of a LoRA tells a convolution from a
    Linear, and keeps its own.
    """
    return {
        name: factor.flatten(1)
        if name in rules.flat_factors and math.prod(factor.shape[2:]) == 1
        else factor
        for name, factor in factors.items()
    }


def _without_magnitude_window(rules: FileRules, factors: dict[str, Tensor]) -> dict[str, Tensor]:
    """Leave out the magnitude's window where the factors are surely of a Linear.

    Those of a LoHa or LoKr have no window beside a convolution that sees one place either, whose
    magnitude has to keep its own: ComfyUI divides it by a norm that has one.
    """
    magnitude = factors.get(DORA_SCALE)
    others = (factor for name, factor in factors.items() if name != DORA_SCALE)
    if rules.flat_factors or magnitude is None or any(factor.dim() > 2 for factor in others):
        return factors
    return {**factors, DORA_SCALE: magnitude.flatten(1)}


def _flat_magnitude(sizes: tuple[int, int]) -> tuple[tuple[int, int], ...]:
    """DoRA's magnitude of a layer without a window: of rows, or of columns."""
    return (sizes[0], 1), (1, sizes[1])


def _magnitude_shape(role: str, shape: tuple[int, ...]) -> tuple[int, ...]:
    """A magnitude as ``[out, 1]`` or ``[1, in]``, and with ones for a window."""
    if len(shape) == 1:
        return (*shape, 1)
    if role == MAGNITUDE and shape[:1] == (1,):
        # PEFT's are always of the outputs; of a convolution it writes them as [1, out, 1, 1].
        return (shape[1], 1, *shape[2:])
    return shape


def _check_pair(path: Path, name: str, pair: FactorPair, factors: Mapping[str, Tensor]) -> None:
    """See whether two factors, and the core between them, agree on the rank."""
    if pair.up not in factors:
        return
    up, down = tuple(factors[pair.up].shape), tuple(factors[pair.down].shape)
    core = factors.get(pair.core)
    # An output's factor sees one place; only a Linear's is read with a window of one place.
    flat = math.prod(up[2:]) == 1
    if core is None:
        fits = up[1] == down[0] and flat
    else:
        ranks = up[0 if pair.lies else 1], down[0]
        fits = tuple(core.shape[:2]) == ranks and flat and math.prod(down[2:]) == 1
    if not fits:
        beside = "" if core is None else f" beside a core {tuple(core.shape)}"
        raise broken(
            path, f"{name}: {pair.up} and {pair.down} of shapes {up} and {down}{beside} do not fit"
        )


def _magnitude_fit(magnitude: Tensor, sizes: tuple[int, int]) -> bool:
    """Whether there is one magnitude for each row, or for each column or window of columns."""
    rows, columns = sizes
    if math.prod(magnitude.shape[2:]) != 1:
        return False
    stored = tuple(magnitude.shape[:2])
    if magnitude.dim() == 2:
        return stored in _flat_magnitude(sizes)
    return stored == (rows, 1) or (stored[0] == 1 and columns % stored[1] == 0)


def _whole_layer(
    rules: FileRules, factors: Mapping[str, Tensor], alpha: float | None
) -> LayerState:
    """All factors whole: the scale is 1, and alpha only remembers the rank (or is junk)."""
    if alpha is not None and rules.unused_alpha is None and 1.0 <= alpha < _LARGEST_RANK:
        rank = round(alpha)
    else:
        rank = rules.guessed_rank(factors)
    return LayerState(factors, float(rank), rank)
