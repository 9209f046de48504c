"""Several layers as the one layer that ComfyUI fuses them to, such as q, k and v to qkv.

With the parts' deltas one below the other, ``[D1; D2; ...]``:

- LoRA: ``D_i = U_i V_i``. Rank r_1 + r_2 + ... holds it: the U_i on a diagonal of blocks, the V_i
  one below the other. Where all V_i are the same, as after the way from a fused file to its parts,
  rank r does: the U_i one below the other.
- LoHa: ``D_i = (A_i B_i) * (C_i D_i)``. The same with both products, because in the rows of part i
  only its own blocks are not zero: ``(A B) * (C D) = (A_i B_i) * (C_i D_i)`` there.
- LoKr: ``D_i = kron(A_i, B_i)``. Only where all B_i are the same, as after the way from a fused
  file to its parts: ``kron([A_1; A_2; ...], B)``. Else no LoKr holds it.

A part that the adapter lacks has rows of zeros.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from ...adapters.dora import DORA_SCALE
from ...adapters.kinds.file_rules import times
from ...adapters.kinds.registry import FILE_RULES, LOW_RANK, layer_scale, matrix_sizes
from ...errors import AdapterError
from ...types import LayerState
from .outlines import is_convolution

if TYPE_CHECKING:
    from ..names.key_map import Part


@dataclass(frozen=True, slots=True)
class FusedLayer:
    """What a fused layer is made of.

    Attributes:
        native: ComfyUI's name of it.
        kind: ``lora``, ``loha`` or ``lokr``.
        rows: Module of each part, in order, to the rows that it has.
        columns: Inputs of every part.
        shared: Whether all parts that the adapter has share their other factors, those without
            its rows.
    """

    native: str
    kind: str
    rows: Mapping[str, int]
    columns: int
    shared: bool = False


Fuse = Callable[[FusedLayer, Mapping[str, LayerState]], LayerState]
"""Makes the fused layer of those parts that the adapter has; of outlines too."""


def fused_layer(
    native: str, kind: str, parts: Sequence[Part], outlines: Mapping[str, LayerState]
) -> FusedLayer:
    """Find the sizes of a fused layer.

    Args:
        native: Its name.
        kind: The adapter's kind.
        parts: What lies in its rows, in order.
        outlines: Those parts that the adapter has.

    Raises:
        AdapterError: When the size of a part cannot be known, or the parts do not fit each other.
    """
    sizes = {name: matrix_sizes(kind, layer) for name, layer in outlines.items()}
    columns = {size[1] for size in sizes.values()}
    shares = {part.module: part.share for part in parts}
    unknown = [name for name in sizes if name not in shares]
    if unknown:
        raise AdapterError(
            f"{unknown[0]} is a part of {native}, whose parts are not known",
            "a family that tells what lies in the rows of its fused layers",
            "Choose layout 'comfyui' without fused, which needs no fused layer.",
        )
    if len(columns) > 1:
        raise _odd_parts(native, sizes)
    # The parts that are there tell how many rows one share is.
    units = {divmod(sizes[name][0], shares[name]) for name in shares if name in sizes}
    if len(units) > 1 or next(iter(units))[1]:
        raise _odd_parts(native, sizes)
    unit = units.pop()[0]
    rows = {name: unit * share for name, share in shares.items()}
    return FusedLayer(native, kind, rows, columns.pop())


def may_share_factors(kind: str, outlines: Mapping[str, LayerState]) -> bool:
    """Whether several layers' factors, but for those with the rows, have the same shapes."""
    rules = FILE_RULES[kind]
    if len({rules.block_rows(layer.tensors) for layer in outlines.values()}) > 1:
        return False
    first, *others = (_lower(kind, layer) for layer in outlines.values())
    shapes = {name: tensor.shape for name, tensor in first.items()}
    return bool(others) and all(
        {name: tensor.shape for name, tensor in other.items()} == shapes for other in others
    )


def shares_factors(kind: str, layers: Mapping[str, LayerState]) -> bool:
    """Whether layers have the same factors, but for those with the rows, value by value.

    Args:
        kind: The adapter's kind.
        layers: Layers with their tensors, for which `may_share_factors` holds.
    """
    first, *others = (_lower(kind, layer) for layer in layers.values())
    return all(
        torch.equal(tensor, other[name]) for other in others for name, tensor in first.items()
    )


def is_exact(fused: FusedLayer, layers: Mapping[str, LayerState]) -> bool:
    """Whether the fused layer of its parts has factors of their kind (`fuse_exactly`)."""
    return (
        _factor_rows(fused, {name: layers[name] for name in fused.rows if name in layers})
        is not None
    )


def fuse_exactly(fused: FusedLayer, layers: Mapping[str, LayerState]) -> LayerState:
    """Make the fused layer of its parts, without any error.

    Args:
        fused: What it is made of.
        layers: Those parts that the adapter has, or their outlines.

    Returns:
        One layer of the same kind.

    Raises:
        AdapterError: For a LoKr whose parts have second factors of their own.
    """
    present = {name: layers[name] for name in fused.rows if name in layers}
    rows = _factor_rows(fused, present)
    if rows is None:
        stacking = [name for name, rules in FILE_RULES.items() if rules.stacks]
        raise AdapterError(
            f"{fused.native} is one layer in this file, and the adapter is a {fused.kind} with "
            f"factors of its own for {', '.join(layers)}",
            f"a {' or '.join(stacking)}, which can be fused without error",
            "Choose layout 'comfyui' without fused: ComfyUI then applies each part to its slice. "
            f"Or ask for an approximation: --approximate {LOW_RANK} --rank N, or --approximate "
            f"{fused.kind}.",
        )
    scales = {name: layer_scale(fused.kind, layer) for name, layer in present.items()}
    same = len(set(scales.values())) == 1
    first = next(iter(present.values()))
    upper = _upper(fused.kind, first)
    tensors: dict[str, Tensor] = {}
    for factor in first.tensors:
        given = {name: layer.tensors[factor] for name, layer in present.items()}
        if factor in upper:
            if not same and factor == upper[0]:
                given = {name: times(block, scales[name]) for name, block in given.items()}
            tensors[factor] = _stacked(rows, given, shared=fused.shared)
        else:
            tensors[factor] = (
                first.tensors[factor] if fused.shared else torch.cat([*given.values()])
            )
    scale = next(iter(scales.values())) if same else 1.0
    rank = first.rank if fused.shared else sum(layer.rank for layer in present.values())
    return LayerState(tensors, scale * rank, rank)


def _lower(kind: str, layer: LayerState) -> dict[str, Tensor]:
    upper = _upper(kind, layer)
    return {name: tensor for name, tensor in layer.tensors.items() if name not in upper}


def _upper(kind: str, layer: LayerState) -> list[str]:
    """The factors whose rows are those of the delta, or blocks of them; parts may share others."""
    return [name for name, _ in FILE_RULES[kind].row_factors(layer.tensors)]


def _factor_rows(fused: FusedLayer, present: Mapping[str, LayerState]) -> dict[str, int] | None:
    """Rows of each part in the factors that have the rows; None where no factors are the layer."""
    rules = FILE_RULES[fused.kind]
    if rules.stacks:
        return dict(fused.rows)
    # A part that is alone has its other factors for itself.
    size = rules.block_rows(next(iter(present.values())).tensors)
    fits = all(rows % size == 0 for rows in fused.rows.values())
    if not fits or not (fused.shared or len(present) == 1):
        return None
    return {name: rows // size for name, rows in fused.rows.items()}


def _stacked(rows: Mapping[str, int], blocks: Mapping[str, Tensor], *, shared: bool) -> Tensor:
    """Blocks below each other, or on a diagonal; rows of zeros for parts that are not there."""
    some = next(iter(blocks.values()))
    width = some.shape[1] if shared else sum(block.shape[1] for block in blocks.values())
    dtype = some.dtype
    for block in blocks.values():
        dtype = torch.promote_types(dtype, block.dtype)
    whole = torch.zeros(sum(rows.values()), width, dtype=dtype, device=some.device)
    row = column = 0
    for name, count in rows.items():
        block = blocks.get(name)
        if block is not None:
            whole[row : row + count, column : column + block.shape[1]] = block
            column += 0 if shared else block.shape[1]
        row += count
    return whole


def refuse_unfusable(native: str, name: str, layer: LayerState) -> None:
    """Refuse a part whose form no fused layer takes.

    Args:
        native: Name of the fused layer.
        name: The part's module.
        layer: The part, or its outline.

    Raises:
        AdapterError: For DoRA's magnitude and convolutions.
    """
    if DORA_SCALE in layer.tensors:
        raise AdapterError(
            f"{name}, a part of {native}, has a DoRA magnitude",
            "plain factors: ComfyUI would take the magnitude of the whole fused layer",
            "Choose layout 'comfyui' without fused: ComfyUI then applies each part to its slice. "
            "Or name the base (--base), so that the difference itself is written.",
        )
    if is_convolution(layer):
        raise AdapterError(
            f"{name}, a part of {native}, is a convolution",
            "Linear layers, of which fused layers are made",
            "Choose layout 'comfyui' without fused.",
        )


def _odd_parts(native: str, sizes: Mapping[str, tuple[int, int]]) -> AdapterError:
    return AdapterError(
        f"the parts of {native} have the sizes "
        + ", ".join(f"{rows} x {columns} ({name})" for name, (rows, columns) in sizes.items()),
        "parts of one fused layer, with shares of its rows as in the family's other bases",
        "Check that the adapter is for this family; else choose layout 'diffusers'.",
    )
