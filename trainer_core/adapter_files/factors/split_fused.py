"""Splits a layer that is fused in a file, such as qkv, into those that it consists of: rows.

The rows of a delta are rows of one factor, so that each part is a layer of the same kind:

- LoRA: rows of the factor on the outputs' side; the other factor is the same for every part.
- LoHa: rows of both factors on the outputs' side.
- LoKr: a block of rows of the delta is one row of the first factor, times the whole second one. A
  part is exact where it begins and ends between such blocks.

Where a fused LoRA or LoHa was made of parts with ranks of their own, its blocks outside the
diagonal are zero; each part then gets its own columns and its own rank back (`owned_columns`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

import torch
from torch import Tensor

from ...adapters.dora_magnitude import DORA_SCALE, axis_of
from ...adapters.kinds.registry import FILE_RULES
from ...types import LayerState
from ..names.layer_match import Range, RowSlice

ReadRows = Callable[[str, int, int], Tensor]

_FEW = 8


class InexactSliceError(ValueError):
    """A cut that no factors of the kind express; the message says why."""


def row_ranges(cut: RowSlice, count: int) -> list[Range]:
    """The rows that a cut takes of a layer; `InexactSliceError` for parts of rows."""
    if count % cut.total:
        raise InexactSliceError(f"the number of rows, {count}, is not a multiple of {cut.total}")
    unit = count // cut.total
    return [(start * unit, stop * unit) for start, stop in cut.ranges]


def take_rows(matrix: Tensor, cut: RowSlice) -> Tensor:
    """The rows of a matrix that a cut takes, in its order; a copy."""
    return _taken(matrix, row_ranges(cut, matrix.shape[0]), 0)


def put_rows(whole: Tensor, cut: RowSlice, rows: Tensor) -> None:
    """Undo `take_rows` in place: lay rows where a cut takes them from."""
    start = 0
    for first, last in row_ranges(cut, whole.shape[0]):
        whole[first:last] = rows[start : start + last - first]
        start += last - first


def slice_layer(kind: str, layer: LayerState, cut: RowSlice) -> LayerState:
    """Take rows of a fused layer, or of its outline on the meta device; the scale is the same.

    Tensors are copies, but for factors that stay whole.

    Raises:
        InexactSliceError: When no factors of the kind are these rows.
    """
    if cut.is_whole:
        return layer
    tensors = dict(layer.tensors)
    magnitude = tensors.pop(DORA_SCALE, None)
    rules = FILE_RULES[kind]
    size = rules.block_rows(tensors)
    for name, axis in rules.row_factors(tensors):
        tensors[name] = _taken(
            tensors[name], _block_rows(cut, tensors[name].shape[axis], size), axis
        )
    for pair, own in zip(rules.pairs, cut.columns, strict=False):
        tensors[pair.up] = _taken(tensors[pair.up], own, 1)
        tensors[pair.down] = _taken(tensors[pair.down], own, 0)
    rank = sum(stop - start for start, stop in cut.columns[0]) if cut.columns else layer.rank
    if magnitude is not None:
        tensors[DORA_SCALE] = _cut_magnitude(magnitude, cut)
    # The scale stays: alpha over rank is what it was.
    return replace(layer, tensors=tensors, alpha=layer.alpha * rank / layer.rank, rank=rank)


def owned_columns(
    kind: str, cuts: Sequence[RowSlice], outlines: Mapping[str, Tensor], read: ReadRows
) -> list[tuple[tuple[Range, ...], ...] | None]:
    """Find the columns that each part of a fused layer, by its rows, has for itself.

    Of the outlines only the shapes count. `read` gives rows, (factor, first row, behind the last
    row), as a matrix. For each part `RowSlice.columns`, empty where the parts share columns; None
    for a part whose delta is zero because it was not there when the layer was fused.

    Raises:
        InexactSliceError: As `slice_layer`.
    """
    shared: list[tuple[tuple[Range, ...], ...] | None] = [()] * len(cuts)
    # A magnitude changes a layer even where its delta is zero, and a core mixes the columns.
    rules = FILE_RULES[kind]
    cores = {pair.core for pair in rules.pairs}
    if not rules.stacks or len(cuts) < 2 or {DORA_SCALE, *cores} & set(outlines):
        return shared
    owned = []
    for upper in (pair.up for pair in rules.pairs):
        rows = [row_ranges(cut, outlines[upper].shape[0]) for cut in cuts]
        # A few rows tell most layers whose parts share columns.
        few = [[(start, min(start + _FEW, stop)) for start, stop in part] for part in rows]
        columns = None if _is_shared(_used(upper, few, read)) else _used(upper, rows, read)
        diagonal = None if columns is None else _diagonal(columns)
        if diagonal is None:
            return shared
        owned.append(diagonal)
    ranks = [[sum(stop - start for start, stop in part) for part in columns] for columns in owned]
    if any(each != ranks[0] for each in ranks):
        return shared
    return [
        tuple(columns[part] for columns in owned) if ranks[0][part] else None
        for part in range(len(cuts))
    ]


def _used(upper: str, parts: Sequence[Sequence[Range]], read: ReadRows) -> Tensor:
    """Whether part p uses column c, ``[p, c]``."""
    used = [
        torch.stack([(read(upper, *some) != 0).any(dim=0) for some in rows]).any(dim=0)
        for rows in parts
    ]
    return torch.stack(used)


def _is_shared(used: Tensor) -> bool:
    return bool((used.sum(dim=0) > 1).any())


def _diagonal(used: Tensor) -> list[tuple[Range, ...]] | None:
    """Columns of each part, if none is used by two; `[p, c]` says whether part p uses column c."""
    parts, count = used.shape
    if _is_shared(used) or not bool(used.any()):
        return None
    width = count // parts
    if count == width * parts:
        # Blocks of one width: a column of zeros inside a block is the part's own.
        blocks = used.unflatten(1, (parts, width)).any(dim=2)
        if not bool((blocks & ~torch.eye(parts, dtype=torch.bool)).any()):
            return [((part * width, (part + 1) * width),) for part in range(parts)]
    owners = used.int().argmax(dim=0).tolist()
    taken = used.any(dim=0).tolist()
    columns: list[list[Range]] = [[] for _ in range(parts)]
    owner = owners[taken.index(True)]
    for column in range(count):
        # A column that nobody uses goes with the one before it.
        owner = owners[column] if taken[column] else owner
        own = columns[owner]
        if own and own[-1][1] == column:
            own[-1] = (own[-1][0], column + 1)
        else:
            own.append((column, column + 1))
    return [tuple(each) for each in columns]


def _cut_magnitude(magnitude: Tensor, cut: RowSlice) -> Tensor:
    if axis_of(magnitude) == "output" and magnitude.shape[0] > 1:
        return _taken(magnitude, row_ranges(cut, magnitude.shape[0]), 0)
    if cut.permutes:
        return magnitude
    raise InexactSliceError(
        "its DoRA magnitude is that of the fused layer's columns, which a part does not have alone"
    )


def _block_rows(cut: RowSlice, blocks: int, size: int) -> list[Range]:
    rows = row_ranges(cut, blocks * size)
    wrong = next((row for each in rows for row in each if row % size), None)
    if wrong is not None:
        raise InexactSliceError(
            f"a part begins at row {wrong}, inside a block of {size} rows that its first factor "
            "multiplies as one"
        )
    return [(start // size, stop // size) for start, stop in rows]


def _taken(tensor: Tensor, ranges: Sequence[Range], axis: int) -> Tensor:
    if tensor.is_meta:
        # torch would first load what it traces programs with.
        shape = list(tensor.shape)
        shape[axis] = sum(stop - start for start, stop in ranges)
        return tensor.new_empty(shape)
    return torch.cat([tensor.narrow(axis, start, stop - start) for start, stop in ranges], axis)
