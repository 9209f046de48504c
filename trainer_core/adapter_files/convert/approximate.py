"""The nearest LoRA, and the nearest Kronecker product, to a layer that is none.

Nearness is the Frobenius norm of the difference of the deltas; an error is that norm over the norm
of the given delta. Everything is computed in float64 on the CPU. Of outlines, outlines are made,
and an error of 0.

The singular values of a Kronecker product are the products of its factors' singular values, and
its singular vectors the Kronecker products of theirs, so that a LoKr is cut to a LoRA of a rank
without building its delta.

Sources:
    Eckart, Young 1936; Van Loan 2000, "The ubiquitous Kronecker product" (section 2).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from ...adapters.dora import DORA_SCALE
from ...adapters.kinds.factorization import factorize
from ...adapters.kinds.loha import khatri_rao
from ...adapters.kinds.registry import layer_delta, layer_scale
from ...adapters.resize import Spectrum, nearest_kronecker, spectrum_of_product
from ...errors import AdapterError
from ...tensors.randomized_svd import closest_of_rank
from ...types import LayerState
from ..factors.fuse import FusedLayer, fuse_exactly, is_exact, matrix_sizes
from ..factors.products import LokrRows
from ..names.row_slices import Cut, take_rows

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


def as_lora(name: str, kind: str, layer: LayerState, rank: int | None) -> Approximated:
    """Find the nearest LoRA of a rank to a layer.

    Args:
        name: The layer's, for messages.
        kind: ``lora``, ``loha`` or ``lokr``.
        layer: The layer; DoRA's lengths stay as they are.
        rank: The most that it may have. None asks for one without error, which a LoHa of rank r
            has at r^2.

    Returns:
        The LoRA; exact where its rank is large enough.

    Raises:
        AdapterError: For a convolution, or a LoKr without a rank.
    """
    _refuse_convolution(name, layer)
    lengths = {n: tensor for n, tensor in layer.tensors.items() if n == DORA_SCALE}
    factors = {n: tensor for n, tensor in layer.tensors.items() if n != DORA_SCALE}
    if kind == "lora":
        return Approximated(layer, 0.0)
    full = _full_rank(kind, factors)
    if rank is None and kind == "lokr":
        raise _no_rank(name, full)
    kept = full if rank is None else min(rank, full)
    if _is_outline(layer):
        return Approximated(_empty_lora(matrix_sizes(kind, factors), kept, factors, lengths), 0.0)
    double = {n: tensor.double() for n, tensor in factors.items()}
    scale = layer_scale(kind, layer)
    if kind == "loha" and kept == double["hada_w1_a"].shape[1] ** 2:
        down, up = khatri_rao(double)
        return Approximated(_lora(up * scale, down, lengths), 0.0)
    spectrum = _loha_spectrum(double) if kind == "loha" else _lokr_spectrum(double, kept)
    up, down = _pair(spectrum, kept)
    return Approximated(_lora(up * scale, down, lengths), _lost(spectrum[1], kept))


def rows_as_lora(name: str, layer: LayerState, cut: Cut, rank: int | None) -> Approximated:
    """Find the nearest LoRA of a rank to some rows of a LoKr.

    Args:
        name: Of the rows, for messages.
        layer: The LoKr; DoRA's lengths of its rows are cut with them.
        cut: The rows.
        rank: The most that it may have.

    Returns:
        The LoRA; exact where its rank is large enough.

    Raises:
        AdapterError: For a convolution, DoRA of columns, or without a rank.
    """
    _refuse_convolution(name, layer)
    lengths = {n: take_rows(t, cut) for n, t in layer.tensors.items() if n == DORA_SCALE}
    rows = LokrRows(layer, cut)
    if rank is None:
        raise _no_rank(name, rows.full_rank)
    kept = min(rank, rows.full_rank)
    if _is_outline(layer):
        return Approximated(_empty_lora(rows.sizes, kept, layer.tensors, lengths), 0.0)
    rows = LokrRows(_doubled(layer), cut)
    if 2 * rows.product_rank > min(rows.sizes):
        made = matrix_as_lora(rows.delta(), kept)
        layer = replace(made.layer, tensors={**made.layer.tensors, **lengths})
        return Approximated(layer, made.error)
    spectrum = spectrum_of_product(*rows.product())
    return Approximated(_lora(*_pair(spectrum, kept), lengths), _lost(spectrum[1], kept))


def _no_rank(name: str, full: int) -> AdapterError:
    return AdapterError(
        f"{name} as a lora of a rank that is not given",
        f"a rank; {full} would be without error",
        "Give the rank: --rank N.",
    )


def matrix_as_lora(matrix: Tensor, rank: int) -> Approximated:
    """Find the nearest LoRA of a rank to a matrix.

    Args:
        matrix: `[out, in]`, or a convolution's weight; an outline gives an outline.
        rank: The most that it may have.
    """
    flat = matrix.flatten(1)
    kept = min(rank, *flat.shape)
    if flat.is_meta:
        outline = {"": flat}
        return Approximated(_empty_lora((flat.shape[0], flat.shape[1]), kept, outline, {}), 0.0)
    u, values, vh = closest_of_rank(flat, kept)
    near = (u * values) @ vh
    error = _ratio(flat.double() - near, flat)
    # Values that are rounding are left out there; the shape was told before.
    up, down = _pair((u, values, vh), len(values))
    padded = torch.zeros(flat.shape[0], kept), torch.zeros(kept, flat.shape[1])
    padded[0][:, : len(values)], padded[1][: len(values)] = up, down
    return Approximated(_lora(*padded, {}), error)


def fused_as_lokr(
    fused: FusedLayer, layers: Mapping[str, LayerState], errors: dict[str, float]
) -> LayerState:
    """Find the Kronecker product that is nearest to parts below each other.

    Args:
        fused: What the fused layer is made of.
        layers: Those parts that the adapter has, or their outlines; a LoKr without lengths.
        errors: Takes the error under the fused layer's name.

    Returns:
        The exact one where there is one; else a LoKr with both factors whole, split as evenly as
        the sizes allow. Every part has whole blocks of the second factor's rows, so that the parts
        can be read from it again; a part that the adapter lacks has rows of exact zeros.
    """
    if is_exact(fused, layers):
        return fuse_exactly(fused, layers)
    rows = sum(fused.rows.values())
    out_second = _even_divisor(math.gcd(*fused.rows.values()), rows)
    out_first = rows // out_second
    in_first, in_second = factorize(fused.columns, -1)
    first, second = (out_first, in_first), (out_second, in_second)
    rank = max(1, math.ceil(max(second) / 2))
    if _is_outline(next(iter(layers.values()))):
        dtype = _widest(layers)
        empty = {
            name: torch.empty(size, dtype=dtype, device="meta")
            for name, size in (("lokr_w1", first), ("lokr_w2", second))
        }
        return LayerState(empty, float(rank), rank)
    deltas = [
        layer_delta(fused.kind, _doubled(layers[name]))
        if name in layers
        else torch.zeros(count, fused.columns, dtype=torch.float64)
        for name, count in fused.rows.items()
    ]
    one, other, errors[fused.native] = nearest_kronecker(torch.cat(deltas), first, second)
    start = 0
    for name, count in fused.rows.items():
        stop = start + count // out_second
        if name not in layers:
            one[start:stop] = 0.0
        start = stop
    return LayerState({"lokr_w1": one.float(), "lokr_w2": other.float()}, float(rank), rank)


def _even_divisor(number: int, whole: int) -> int:
    """The divisor of a number that splits a multiple of it most evenly."""
    found = [each for each in range(1, math.isqrt(number) + 1) if number % each == 0]
    found += [number // each for each in found]
    return min(found, key=lambda each: each + whole // each)


def _is_outline(layer: LayerState) -> bool:
    return any(tensor.is_meta for tensor in layer.tensors.values())


def _doubled(layer: LayerState) -> LayerState:
    tensors = {name: tensor.double() for name, tensor in layer.tensors.items()}
    return LayerState(tensors, layer.alpha, layer.rank)


def _widest(layers: Mapping[str, LayerState]) -> torch.dtype:
    dtypes = [t.dtype for layer in layers.values() for t in layer.tensors.values()]
    widest = dtypes[0]
    for dtype in dtypes[1:]:
        widest = torch.promote_types(widest, dtype)
    return widest


def _full_rank(kind: str, factors: Mapping[str, Tensor]) -> int:
    """The rank at which a LoRA holds a layer, whatever its values are."""
    sides = matrix_sizes(kind, factors)
    if kind == "loha":
        return factors["hada_w1_a"].shape[1] ** 2
    return min(_part_rank(factors, "lokr_w1") * _part_rank(factors, "lokr_w2"), *sides)


def _part_rank(factors: Mapping[str, Tensor], name: str) -> int:
    if name in factors:
        return min(factors[name].shape)
    up, down = factors[f"{name}_a"], factors[f"{name}_b"]
    return min(*up.shape, *down.shape)


def _loha_spectrum(factors: Mapping[str, Tensor]) -> Spectrum:
    down, up = khatri_rao(factors)
    return spectrum_of_product(up, down)


def _lokr_spectrum(factors: Mapping[str, Tensor], kept: int) -> Spectrum:
    """The largest singular values of a Kronecker product with their vectors, and all the others.

    Returns:
        As `spectrum_of_product`, but with vectors for the first `kept` values alone.
    """
    first, second = (_part_spectrum(factors, name) for name in ("lokr_w1", "lokr_w2"))
    values, order = torch.outer(first[1], second[1]).flatten().sort(descending=True, stable=True)
    of_first, of_second = order[:kept] // len(second[1]), order[:kept] % len(second[1])
    u = torch.einsum("ak,bk->abk", first[0][:, of_first], second[0][:, of_second]).flatten(0, 1)
    vh = torch.einsum("kc,kd->kcd", first[2][of_first], second[2][of_second]).flatten(1)
    return u, values, vh


def _part_spectrum(factors: Mapping[str, Tensor], name: str) -> Spectrum:
    if name in factors:
        return torch.linalg.svd(factors[name], full_matrices=False)
    return spectrum_of_product(factors[f"{name}_a"], factors[f"{name}_b"])


def _pair(spectrum: Spectrum, rank: int) -> tuple[Tensor, Tensor]:
    """Two factors of one norm for each singular value; zeros for values that are rounding."""
    u, s, vh = spectrum
    values = s[:rank]
    root = torch.where(values > _NEGLIGIBLE * s.max(), values, torch.zeros_like(values)).sqrt()
    return u[:, :rank] * root, root[:, None] * vh[:rank]


def _lost(s: Tensor, rank: int) -> float:
    norm = float(torch.linalg.vector_norm(s))
    return float(torch.linalg.vector_norm(s[rank:])) / norm if norm else 0.0


def _ratio(lost: Tensor, whole: Tensor) -> float:
    norm = float(torch.linalg.vector_norm(whole.double()))
    return float(torch.linalg.vector_norm(lost)) / norm if norm else 0.0


def _lora(up: Tensor, down: Tensor, lengths: Mapping[str, Tensor]) -> LayerState:
    tensors = {"lora_down": down.float(), "lora_up": up.float(), **lengths}
    return LayerState(tensors, float(down.shape[0]), down.shape[0])


def _empty_lora(
    sizes: tuple[int, int],
    rank: int,
    given: Mapping[str, Tensor],
    lengths: Mapping[str, Tensor],
) -> LayerState:
    dtype = _widest({"": LayerState(given, 1.0, 1)})
    shapes = {"lora_down": (rank, sizes[1]), "lora_up": (sizes[0], rank)}
    empty = {n: torch.empty(shape, dtype=dtype, device="meta") for n, shape in shapes.items()}
    return LayerState({**empty, **lengths}, float(rank), rank)


def _refuse_convolution(name: str, layer: LayerState) -> None:
    if layer.kernel or any(tensor.dim() > 2 for tensor in layer.tensors.values()):
        raise AdapterError(
            f"{name} is a convolution",
            "Linear layers to approximate",
            "Choose layout 'comfyui', which holds the layer as it is.",
        )
