"""Makes layers that ComfyUI fuses, such as q, k and v to qkv, of their parts, or leaves them.

Reading one as its parts is in `names.layer_match` and `split_fused`.

With the parts' deltas one below the other, ``[D1; D2; ...]``:

- LoRA: ``D_i = U_i V_i``. Rank r_1 + r_2 + ... holds it: the U_i on a diagonal of blocks, the V_i
  one below the other. Where all V_i are the same, as after the way from a fused file to its parts,
  rank r does: the U_i one below the other.
- LoHa: ``D_i = (A_i B_i) * (C_i D_i)``. The same with both products, because in the rows of part i
  only its own blocks are not zero: ``(A B) * (C D) = (A_i B_i) * (C_i D_i)`` there.
- LoKr: ``D_i = kron(A_i, B_i)``. Only where all B_i are the same, as after the way from a fused
  file to its parts: ``kron([A_1; A_2; ...], B)``. Else no LoKr holds it.

A part that the adapter lacks has rows of zeros.

Most fused layers of a file are read as the modules that they consist of (`split_fused`). A LoKr
whose parts begin inside a block of its first factor is not, and neither is one with DoRA of the
columns, whose magnitude is that of the fused layer. Such a layer is undivided: it stays whole in an
`AdapterState`, under ComfyUI's name. Layouts with ComfyUI's names hold it as it is; its rows can be
computed, so that a LoRA of each part can be made.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from ...adapters.dora_magnitude import DORA_SCALE
from ...adapters.kinds.file_rules import scaled_factor
from ...adapters.kinds.registry import FILE_RULES, KINDS, LOW_RANK, layer_scale, matrix_sizes
from ...errors import AdapterError
from ...types import LayerState
from .outlines import is_convolution

if TYPE_CHECKING:
    from ..names.key_map import Part


from collections.abc import Iterable

from ...adapters.dora_magnitude import axis_of
from ...types import AdapterState
from ..names.key_map import KeyMap
from ..names.layer_match import RowSlice, native_modules
from .effective_delta import effective_delta
from .outlines import outline_of
from .split_fused import InexactSliceError, put_rows, slice_layer


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
    """Find the sizes of a fused layer from the outlines of those parts that the adapter has.

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
    """Whether layers for which `may_share_factors` holds have these factors value by value."""
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
    """Make the fused layer of those parts that the adapter has, or its outline, without any error.

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
            "Choose layout 'comfyui' without fused: ComfyUI then applies each part to its slice, "
            "where it has names for parts. Or ask for an approximation: "
            f"--approximate {LOW_RANK} --rank N, or --approximate {fused.kind}.",
        )
    scales = {name: layer_scale(fused.kind, layer) for name, layer in present.items()}
    same = len(set(scales.values())) == 1
    first = next(iter(present.values()))
    upper = _upper(fused.kind, first)
    tensors: dict[str, Tensor] = {}
    for factor in first.tensors:
        blocks = {name: layer.tensors[factor] for name, layer in present.items()}
        if factor in upper:
            if not same and factor == upper[0]:
                blocks = {
                    name: scaled_factor(block, scales[name]) for name, block in blocks.items()
                }
            tensors[factor] = _stacked(rows, blocks, shared=fused.shared)
        else:
            tensors[factor] = (
                first.tensors[factor] if fused.shared else torch.cat([*blocks.values()])
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
    """Refuse a part, or its outline, whose form no fused layer takes, by `AdapterError`."""
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


MAKE_LOW_RANK = (
    "Make a LoRA of it: adapter-trainer convert IN OUT --to LAYOUT --approximate "
    f"{LOW_RANK} --rank N"
)


def is_undivided(name: str, key_map: KeyMap) -> bool:
    """Whether a layer of an adapter is one of ComfyUI's that is not a module here."""
    return key_map.to_native(name) is None and key_map.is_divided(name)


def undivided_layers(names: Iterable[str], key_map: KeyMap) -> list[str]:
    """Those of an adapter's layers that are undivided."""
    return [name for name in names if is_undivided(name, key_map)]


def undivided_parts(name: str, key_map: KeyMap) -> tuple[tuple[str, RowSlice], ...]:
    """The modules of an undivided layer, each with its rows; empty for a module."""
    return native_modules(name, key_map) if is_undivided(name, key_map) else ()


def with_divided_layers(state: AdapterState, key_map: KeyMap) -> AdapterState:
    """The adapter with the modules of layers that are trained whole, where their kind has such.

    Of a LoRA or LoHa rows of a layer are a layer of the same kind.
    """
    whole = [
        name for name in undivided_layers(state.layers, key_map) if key_map.is_fused_only(name)
    ]
    layers = {name: state.layers[name] for name in state.layers} if whole else {}
    for name in whole:
        try:
            parts = {
                module: slice_layer(state.kind, layers[name], cut)
                for module, cut in undivided_parts(name, key_map)
            }
        except InexactSliceError:
            continue
        del layers[name]
        layers |= parts
    return replace(state, layers=layers) if whole else state


def refuse_undivided(
    state: AdapterState,
    key_map: KeyMap,
    place: str,
    remedy: str = "",
    *,
    welcome: Callable[[KeyMap, str], bool] = lambda key_map, name: False,
) -> None:
    """Refuse undivided layers but the welcome ones, where the modules themselves are needed.

    Welcome are such as are trained whole; a place, such as ``layout 'peft'``, needs the others, and
    the remedy is what can be done besides a LoRA.

    Raises:
        AdapterError: When there is one; the message names the first.
    """
    names = [name for name in undivided_layers(state.layers, key_map) if not welcome(key_map, name)]
    if not names:
        return
    modules = ", ".join(module for module, _ in undivided_parts(names[0], key_map))
    layer = outline_of(state.layers, names[0])
    if has_column_magnitude(layer):
        why, base = "its DoRA magnitude is that of the fused layer's columns", " --base PATH"
    else:
        why, base = f"its parts begin inside blocks of the {state.kind}'s first factor", ""
    raise AdapterError(
        f"{names[0]} ({state.kind}), one layer in the file and {modules} here; no {state.kind} is "
        f"such a part, because {why} ({len(names)} such layers in all)",
        f"layers of which {place} can have each part",
        f"{remedy} {MAKE_LOW_RANK}{base}.".strip(),
    )


def joined_weights(weight_of: Callable[[str], Tensor], key_map: KeyMap) -> Callable[[str], Tensor]:
    """Give the weights of undivided layers too, where ``weight_of`` knows those of modules."""

    def joined(name: str) -> Tensor:
        parts = undivided_parts(name, key_map)
        if not parts:
            return weight_of(name)
        weights = {module: weight_of(module) for module, _ in parts}
        first = next(iter(weights.values()))
        whole = first.new_empty(sum(map(len, weights.values())), *first.shape[1:])
        for module, cut in parts:
            put_rows(whole, cut, weights[module])
        return whole

    return joined


def undivided_delta(
    state: AdapterState, name: str, weight_of: Callable[[str], Tensor], key_map: KeyMap
) -> Tensor:
    """Compute what an undivided layer changes, as `effective_delta`.

    `weight_of`, a module's path to its weight, is asked only where the difference depends on it.
    """
    layer = state.layers[name]
    if needs_weight(state.kind, layer):
        return effective_delta(state.kind, layer, joined_weights(weight_of, key_map)(name))
    shape = matrix_sizes(state.kind, layer)
    return effective_delta(state.kind, layer, torch.empty(1).expand(shape))  # only its shape counts


def needs_weight(kind: str, layer: LayerState) -> bool:
    """Whether what a layer adds depends on the base's weight."""
    return DORA_SCALE in layer.tensors or KINDS[kind].multiplies


def has_column_magnitude(layer: LayerState) -> bool:
    """Whether a layer has DoRA of its columns, which only all of its rows together have."""
    magnitude = layer.tensors.get(DORA_SCALE)
    return magnitude is not None and axis_of(magnitude) == "input"
