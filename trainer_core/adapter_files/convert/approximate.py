"""The nearest LoRA to a layer that is none, and the nearest fused layer where none is exact.

Nearness is the Frobenius norm of the difference of the deltas; an error is that norm over the norm
of the given delta. Everything is computed in float64 on the CPU. Of outlines, outlines are made,
and an error of 0.

Source: Eckart, Young 1936; a kind's own algebra is in its `FileRules`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from ...adapters.dora_magnitude import DORA_SCALE
from ...adapters.kinds.low_rank_algebra import Spectrum, spectrum_of_product
from ...adapters.kinds.registry import (
    FILE_RULES,
    LOW_RANK,
    empty_low_rank,
    layer_delta,
    layer_scale,
    low_rank_layer,
)
from ...errors import AdapterError
from ...tensors.randomized_svd import closest_of_rank
from ...types import LayerState
from ..factors.effective_delta import SlicedRows
from ..factors.fuse_layers import FusedLayer, fuse_exactly, is_exact
from ..factors.outlines import is_convolution, is_outline
from ..factors.split_fused import take_rows
from ..names.layer_match import RowSlice

_NEGLIGIBLE = 1e-12
"""Singular values below this share of the largest are float64's rounding."""


@dataclass(frozen=True, slots=True)
class Approximated:
    """A layer in another form.

    Attributes:
        layer: Its factors.
        error: Norm of what the delta lost over the norm of the delta.
    """

    layer: LayerState
    error: float


def as_low_rank(name: str, kind: str, layer: LayerState, rank: int | None) -> Approximated:
    """Find the nearest LoRA to a layer, of a rank at most; a DoRA magnitude stays as it is.

    None asks for one without error, which a LoHa of rank r has at r^2.

    Raises:
        AdapterError: For a convolution, or a LoKr without a rank.
    """
    _refuse_convolution(name, layer)
    magnitude = {n: tensor for n, tensor in layer.tensors.items() if n == DORA_SCALE}
    factors = {n: tensor for n, tensor in layer.tensors.items() if n != DORA_SCALE}
    if kind == LOW_RANK:
        return Approximated(layer, 0.0)
    rules = FILE_RULES[kind]
    full = rules.full_rank(factors)
    if rank is None and not rules.product_is_exact:
        raise _no_rank(name, full)
    kept = full if rank is None else min(rank, full)
    if is_outline(layer):
        empty = empty_low_rank(rules.sizes(factors), kept, _widest([layer]))
        return Approximated(replace(empty, tensors={**empty.tensors, **magnitude}), 0.0)
    double = {n: tensor.double() for n, tensor in factors.items()}
    scale = layer_scale(kind, layer)
    if rules.product_is_exact and kept == full:
        return Approximated(_layer(*rules.product(double, scale), magnitude), 0.0)
    spectrum = rules.spectrum(double, kept)
    up, down = _pair(spectrum, kept)
    return Approximated(
        _layer(up * scale, down, magnitude), _ratio(spectrum[1][kept:], spectrum[1])
    )


def rows_as_low_rank(
    name: str, kind: str, layer: LayerState, cut: RowSlice, rank: int | None
) -> Approximated:
    """As `as_low_rank`, to some rows of a layer that no factors of its kind are.

    A DoRA magnitude of the rows is cut with them.

    Raises:
        AdapterError: For a convolution, DoRA of columns, or without a rank.
    """
    _refuse_convolution(name, layer)
    magnitude = {n: take_rows(t, cut) for n, t in layer.tensors.items() if n == DORA_SCALE}
    rows = SlicedRows(kind, layer, cut)
    if rank is None:
        raise _no_rank(name, rows.full_rank)
    kept = min(rank, rows.full_rank)
    if is_outline(layer):
        made = Approximated(empty_low_rank(rows.sizes, kept, _widest([layer])), 0.0)
    else:
        rows = SlicedRows(kind, _doubled(layer), cut)
        if 2 * rows.product_rank > min(rows.sizes):
            made = matrix_as_low_rank(rows.delta(), kept)
        else:
            spectrum = spectrum_of_product(*rows.product())
            made = Approximated(
                _layer(*_pair(spectrum, kept), {}), _ratio(spectrum[1][kept:], spectrum[1])
            )
    return replace(made, layer=replace(made.layer, tensors={**made.layer.tensors, **magnitude}))


def _no_rank(name: str, full: int) -> AdapterError:
    return AdapterError(
        f"{name} as a {LOW_RANK} of a rank that is not given",
        f"a rank; {full} would be without error",
        "Give the rank: --rank N.",
    )


def matrix_as_low_rank(matrix: Tensor, rank: int) -> Approximated:
    """Find the nearest LoRA of a rank to `[out, in]` or a convolution's weight, or its outline."""
    flat = matrix.flatten(1)
    kept = min(rank, *flat.shape)
    if flat.is_meta:
        return Approximated(empty_low_rank(tuple(flat.shape), kept, flat.dtype), 0.0)
    u, values, vh = closest_of_rank(flat, kept)
    near = (u * values) @ vh
    error = _ratio(flat.double() - near, flat)
    # Values that are rounding are left out there; the shape was told before.
    up, down = _pair((u, values, vh), len(values))
    padded = torch.zeros(flat.shape[0], kept), torch.zeros(kept, flat.shape[1])
    padded[0][:, : len(values)], padded[1][: len(values)] = up, down
    return Approximated(_layer(*padded, {}), error)


def fused_nearest(
    fused: FusedLayer, layers: Mapping[str, LayerState], errors: dict[str, float]
) -> LayerState:
    """Find the layer of the parts' kind that is nearest to them below each other.

    The parts, or their outlines, have no magnitude. The exact layer where there is one; else
    `FileRules.stack`, whose error is noted under the fused layer's name. The parts can be read from
    it again; a part that the adapter lacks has rows of exact zeros.
    """
    if is_exact(fused, layers):
        return fuse_exactly(fused, layers)
    rules = FILE_RULES[fused.kind]
    if is_outline(next(iter(layers.values()))):
        size = sum(fused.rows.values()), fused.columns
        matrix = torch.empty(size, dtype=_widest(layers.values()), device="meta")
        tensors, _ = rules.stack(fused.rows.values(), matrix)
    else:
        deltas = [
            layer_delta(fused.kind, _doubled(layers[name]))
            if name in layers
            else torch.zeros(count, fused.columns, dtype=torch.float64)
            for name, count in fused.rows.items()
        ]
        tensors, errors[fused.native] = rules.stack(fused.rows.values(), torch.cat(deltas))
        start, factors = 0, rules.row_factors(tensors)
        for name, count in fused.rows.items():
            stop = start + count // rules.block_rows(tensors)
            if name not in layers:
                for factor, _ in factors:
                    tensors[factor][start:stop] = 0.0
            start = stop
    rank = rules.guessed_rank(tensors)
    return LayerState(tensors, float(rank), rank)


def _doubled(layer: LayerState) -> LayerState:
    tensors = {name: tensor.double() for name, tensor in layer.tensors.items()}
    return LayerState(tensors, layer.alpha, layer.rank)


def _widest(layers: Iterable[LayerState]) -> torch.dtype:
    dtypes = [t.dtype for layer in layers for t in layer.tensors.values()]
    widest = dtypes[0]
    for dtype in dtypes[1:]:
        widest = torch.promote_types(widest, dtype)
    return widest


def _pair(spectrum: Spectrum, rank: int) -> tuple[Tensor, Tensor]:
    """Two factors of one norm for each singular value; zeros for values that are rounding."""
    u, s, vh = spectrum
    values = s[:rank]
    root = torch.where(values > _NEGLIGIBLE * s.max(), values, torch.zeros_like(values)).sqrt()
    return u[:, :rank] * root, root[:, None] * vh[:rank]


def _ratio(lost: Tensor, whole: Tensor) -> float:
    norm = float(torch.linalg.vector_norm(whole.double()))
    return float(torch.linalg.vector_norm(lost)) / norm if norm else 0.0


def _layer(up: Tensor, down: Tensor, magnitude: Mapping[str, Tensor]) -> LayerState:
    layer = low_rank_layer(up.float(), down.float())
    return replace(layer, tensors={**layer.tensors, **magnitude})


def _refuse_convolution(name: str, layer: LayerState) -> None:
    if is_convolution(layer):
        raise AdapterError(
            f"{name} is a convolution",
            "Linear layers to approximate",
            "Choose layout 'comfyui', which holds the layer as it is.",
        )
