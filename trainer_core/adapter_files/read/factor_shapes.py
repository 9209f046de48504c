"""Whether the factors of a layer make a whole, seen from their shapes alone."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path

import torch
from torch import Tensor

from ...adapters.dora import DORA_SCALE
from ...adapters.kernels.convolution import CORES
from ...errors import AdapterFileError
from ...tensors.safetensors_reader import broken
from ...tensors.safetensors_writer import TensorInfo
from ...types import LayerState
from ..factors.fuse import matrix_sizes
from ..names.key_parsing import MAGNITUDE
from ..write.write_plan import reader_rank

_LOHA = {"hada_w1_a", "hada_w1_b", "hada_w2_a", "hada_w2_b"}
_WHOLE_SETS = {
    "lora": [{"lora_down", "lora_up"}, {"lora_down", "lora_mid", "lora_up"}],
    "loha": [_LOHA, _LOHA | {"hada_t1", "hada_t2"}],
    "lokr": [
        first | second
        for first in ({"lokr_w1"}, {"lokr_w1_a", "lokr_w1_b"})
        for second in (
            {"lokr_w2"},
            {"lokr_w2_a", "lokr_w2_b"},
            {"lokr_w2_a", "lokr_w2_b", "lokr_t2"},
        )
    ],
}
_PAIRS = (
    ("lora_up", "lora_down"),
    ("hada_w1_a", "hada_w1_b"),
    ("hada_w2_a", "hada_w2_b"),
    ("lokr_w1_a", "lokr_w1_b"),
    ("lokr_w2_a", "lokr_w2_b"),
)
_MATRICES = (
    *("hada_w1_a", "hada_w1_b", "hada_w2_a", "hada_w2_b"),
    *("lokr_w1", "lokr_w1_a", "lokr_w1_b", "lokr_w2_a", "lokr_w2_b"),
)
"""Factors that hold no window of their own: it is in the core, in the columns, or in lokr_w2."""

_CORE_OF = {pair: core for core, pair in CORES.items()}
_LARGEST_RANK = 2**31
_FLOATS = (torch.float64, torch.float32, torch.float16, torch.bfloat16)


def outline_factor(path: Path, key: str, role: str, info: TensorInfo) -> Tensor:
    """The outline of a factor or of lengths, in the number format and shape that it is kept in.

    Args:
        path: The file, for messages.
        key: The factor's key.
        role: As `spellings.Key.role`.
        info: What the header says.

    Returns:
        A tensor of the meta device. Formats of 8 bits, in which nothing is computed, become
        bfloat16, which holds all of their values.

    Raises:
        AdapterFileError: When it is no factor of a layer that can be adapted.
    """
    shape, floats = info.shape, info.dtype.is_floating_point
    if role in (DORA_SCALE, MAGNITUDE):
        shape = _lengths_shape(role, shape)
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
    """Put a layer together from the outlines of its factors.

    Args:
        path: The file, for messages.
        name: The layer's name in the file.
        kind: ``lora``, ``loha`` or ``lokr``.
        factors: Factor to outline; DoRA's lengths among them.
        alpha: The layer's alpha; None and 0 mean the rank.

    Returns:
        The layer, with all factors in one number format that holds each of theirs; lengths stay
        in their own.

    Raises:
        AdapterFileError: When a factor is missing or too many, or the shapes do not fit.
    """
    if set(factors) - {DORA_SCALE} not in _WHOLE_SETS[kind]:
        raise broken(path, f"{name} has only {', '.join(sorted(factors))}; a factor is missing")
    for pair in _PAIRS:
        _check_pair(path, name, pair, factors)
    factors = _without_windows(factors)
    dtype = None
    for role, factor in factors.items():
        # Lengths are kept finer than factors, which need not follow them.
        if role != DORA_SCALE:
            dtype = factor.dtype if dtype is None else torch.promote_types(dtype, factor.dtype)
    same = {role: f if role == DORA_SCALE else f.to(dtype) for role, f in factors.items()}
    if DORA_SCALE in same and not _lengths_fit(same[DORA_SCALE], matrix_sizes(kind, same)):
        found = tuple(same[DORA_SCALE].shape)
        raise broken(path, f"{name}: lengths (dora_scale) of shape {found} do not fit its factors")
    same = _without_lengths_window(kind, same)
    rank = reader_rank(same)
    if rank is None:
        return _whole_layer(same, alpha)
    if alpha is not None and not math.isfinite(alpha):
        raise broken(path, f"{name}.alpha is {alpha}")
    return LayerState(same, float(alpha or rank), rank)


def _without_windows(factors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Leave out windows of one place that kohya's and LyCORIS's files have at factors of a Linear.

    ComfyUI takes no such window there. The first factor of a LoRA tells a convolution from a
    Linear, and keeps its own.
    """
    return {
        name: factor.flatten(1)
        if name in _MATRICES and math.prod(factor.shape[2:]) == 1
        else factor
        for name, factor in factors.items()
    }


def _without_lengths_window(kind: str, factors: dict[str, Tensor]) -> dict[str, Tensor]:
    """Leave out the lengths' window where the factors are surely of a Linear.

    Those of a LoHa or LoKr have no window beside a convolution that sees one place either, whose
    lengths have to keep theirs: ComfyUI divides them by a norm that has one.
    """
    lengths = factors.get(DORA_SCALE)
    others = (factor for name, factor in factors.items() if name != DORA_SCALE)
    if kind != "lora" or lengths is None or any(factor.dim() > 2 for factor in others):
        return factors
    return {**factors, DORA_SCALE: lengths.flatten(1)}


def _flat_lengths(sizes: tuple[int, int]) -> tuple[tuple[int, int], ...]:
    """DoRA's lengths of a layer without a window: of rows, or of columns."""
    return (sizes[0], 1), (1, sizes[1])


def _lengths_shape(role: str, shape: tuple[int, ...]) -> tuple[int, ...]:
    """Lengths as ``[out, 1]`` or ``[1, in]``, and with ones for a window."""
    if len(shape) == 1:
        return (*shape, 1)
    if role == MAGNITUDE and shape[:1] == (1,):
        # PEFT's are always of the outputs; of a convolution it writes them as [1, out, 1, 1].
        return (shape[1], 1, *shape[2:])
    return shape


def _check_pair(
    path: Path, name: str, pair: tuple[str, str], factors: Mapping[str, Tensor]
) -> None:
    """See whether two factors, and the core between them, agree on the rank."""
    if pair[0] not in factors:
        return
    up, down = (tuple(factors[each].shape) for each in pair)
    core = factors.get(_CORE_OF.get(pair, ""))
    # An output's factor sees one place; only a Linear's is read with a window of one place.
    flat = math.prod(up[2:]) == 1
    if core is None:
        fits = up[1] == down[0] and flat
    else:
        # LoHa and LoKr keep the outputs' factor lying beside a core.
        ranks = (up[1] if pair[0] == "lora_up" else up[0], down[0])
        fits = tuple(core.shape[:2]) == ranks and flat and math.prod(down[2:]) == 1
    if not fits:
        beside = "" if core is None else f" beside a core {tuple(core.shape)}"
        raise broken(
            path, f"{name}: {pair[0]} and {pair[1]} of shapes {up} and {down}{beside} do not fit"
        )


def _lengths_fit(lengths: Tensor, sizes: tuple[int, int]) -> bool:
    """Whether there is one length for each row, or for each column or window of columns."""
    rows, columns = sizes
    if math.prod(lengths.shape[2:]) != 1:
        return False
    given = tuple(lengths.shape[:2])
    if lengths.dim() == 2:
        return given in _flat_lengths(sizes)
    return given == (rows, 1) or (given[0] == 1 and columns % given[1] == 0)


def _whole_layer(factors: Mapping[str, Tensor], alpha: float | None) -> LayerState:
    """Both factors whole: the scale is 1, and alpha only remembers the rank (or is junk)."""
    if alpha is not None and 1.0 <= alpha < _LARGEST_RANK:
        rank = round(alpha)
    else:
        rank = math.ceil(max(factors["lokr_w2"].shape[:2]) / 2)
    return LayerState(factors, float(rank), rank)
