"""Several adapters as one: the weighted sum of what they add to each weight.

A sum of low-rank products is one product, with the factors side by side, so that the result is a
lora whatever the kinds are: ``[U1 U2] [V1; V2] = U1 V1 + U2 V2``. A loha of rank r is a product of
rank r^2 (Khatri-Rao), a lokr one of the product of its factors' ranks (Kronecker).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import torch
from torch import Tensor

from ...adapters.dora_magnitude import DORA_SCALE
from ...adapters.kinds.low_rank_algebra import spectrum_of_product
from ...adapters.kinds.registry import (
    FILE_RULES,
    LOW_RANK,
    balanced_factors,
    layer_delta,
    low_rank_layer,
    matrix_sizes,
    refuse_multiplying,
)
from ...config import AdapterConfig
from ...errors import AdapterError
from ...tensors.randomized_svd import closest_of_rank
from ...types import AdapterState, LayerState
from ..factors.effective_delta import Pair, SlicedRows, as_product
from ..factors.fuse_layers import undivided_parts
from ..factors.outlines import outline_of, patch_outline
from ..names.key_map import KeyMap
from ..names.layer_match import WHOLE, LayerRows
from .resize_and_extract import known_settings


def combine_adapters(
    inputs: Sequence[tuple[AdapterState, float]],
    key_map: KeyMap,
    rank: int | None = None,
    progress: Callable[[int, int, str], None] | None = None,
) -> tuple[AdapterState, dict[str, float]]:
    """Add adapters up.

    Args:
        inputs: Each adapter and what it is multiplied by.
        key_map: The family's names, by which undivided layers get parts (`fuse_layers`).
        rank: Cuts every layer to the closest delta of this rank. None keeps the sum exact; it has
            the sum of the ranks. A single adapter then keeps its kind.
        progress: Is told of every layer: number done, number of all, name.

    Returns:
        The adapter, a lora but for that case, in float32; and each layer's relative error, 0 where
        nothing was cut. A layer that only one adapter has is that adapter's.

    Raises:
        AdapterError: For DoRA, ``set_weight``, deltas of different sizes, or an exact sum that
            would be larger than the weights themselves.
    """
    for state, _ in inputs:
        _refuse_special(state)
    extras = _summed_extras(inputs)
    layers: dict[str, LayerState] = {}
    errors: dict[str, float] = {}
    if len(inputs) == 1 and rank is None:
        state, weight = inputs[0]
        layers = {name: _weighted(state.kind, state.layers[name], weight) for name in state.layers}
        settings = known_settings(state, {})
        return AdapterState(state.kind, layers, settings, extras), dict.fromkeys(layers, 0.0)
    sources = [(state, weight, _sources(state, key_map)) for state, weight in inputs]
    names = list(dict.fromkeys(name for _, _, own in sources for name in own))
    for name in names:
        own = [(*_read(state, own[name]), weight) for state, weight, own in sources if name in own]
        plain = all(state.kind == LOW_RANK for state, _, own in sources if name in own)
        layers[name], errors[name] = _combine_layer(name, own, rank, plain=plain)
        if progress is not None:
            progress(len(layers), len(names), name)
    usual = max(layer.rank for layer in layers.values()) if layers else 1
    settings = AdapterConfig.model_validate(
        {"kind": LOW_RANK, "rank": min(usual, 4096)}
    ).model_dump(mode="json")
    return AdapterState(LOW_RANK, layers, settings, extras), errors


def _sources(state: AdapterState, key_map: KeyMap) -> dict[str, LayerRows]:
    """Where each module's delta lies in an adapter, also that of a part of an undivided layer."""
    sources: dict[str, LayerRows] = {}
    for name in state.layers:
        parts = undivided_parts(name, key_map) or ((name, WHOLE),)
        sources |= {module: LayerRows(name, cut) for module, cut in parts}
    return sources


def _read(state: AdapterState, source: LayerRows) -> tuple[str, LayerState]:
    """A layer with its kind; the rows of an undivided one as a LoRA."""
    layer = state.layers[source.name]
    if source.cut == WHOLE:
        return state.kind, layer
    return LOW_RANK, low_rank_layer(*SlicedRows(state.kind, layer, source.cut).product())


def _combine_layer(
    name: str, inputs: Sequence[tuple[str, LayerState, float]], rank: int | None, *, plain: bool
) -> tuple[LayerState, float]:
    sizes = {matrix_sizes(kind, layer) for kind, layer, _ in inputs}
    if len(sizes) > 1:
        found = " and ".join(sorted(f"{rows} x {columns}" for rows, columns in sizes))
        raise AdapterError(
            f"{name} is {found} in the adapters",
            "adapters of the same base",
            "Combine adapters that were trained on one base.",
        )
    rows, columns = sizes.pop()
    total = sum(FILE_RULES[kind].product_rank(layer.tensors) for kind, layer, _ in inputs)
    kernel = next(
        (own for own in (FILE_RULES[kind].window(layer) for kind, layer, _ in inputs) if own), ()
    )
    if rank is None and not plain and total * (rows + columns) > rows * columns:
        raise AdapterError(
            f"{name}, which as an exact {LOW_RANK} has rank {total} and is larger than its "
            f"weight of {rows} x {columns}",
            "adapters whose sum is of low rank",
            f"Give a rank: --rank N takes the closest {LOW_RANK} of that rank and reports the "
            "error.",
        )
    wanted = min(rank or total, rows, columns)
    if total <= wanted:
        return low_rank_layer(*_side_by_side(inputs), kernel), 0.0
    if 2 * total <= min(rows, columns):
        return _cut(_side_by_side(inputs), wanted, kernel)
    return _cut_whole(inputs, wanted, kernel)


def _side_by_side(inputs: Sequence[tuple[str, LayerState, float]]) -> Pair:
    pairs = [(as_product(kind, layer), weight) for kind, layer, weight in inputs]
    up = torch.cat([pair[0] * weight for pair, weight in pairs], 1)
    return up, torch.cat([pair[1] for pair, _ in pairs])


def _cut(pair: Pair, rank: int, kernel: tuple[int, ...]) -> tuple[LayerState, float]:
    u, s, vh = spectrum_of_product(pair[0].double(), pair[1].double())
    size = torch.linalg.vector_norm(s)
    error = float(torch.linalg.vector_norm(s[rank:]) / size) if size else 0.0
    return balanced_factors(u[:, :rank], s[:rank], vh[:rank], kernel), error


def _cut_whole(
    inputs: Sequence[tuple[str, LayerState, float]], rank: int, kernel: tuple[int, ...]
) -> tuple[LayerState, float]:
    """The same by the delta itself, where the product would be no smaller."""
    delta = sum(layer_delta(kind, layer) * weight for kind, layer, weight in inputs)
    assert isinstance(delta, Tensor)
    size = torch.linalg.vector_norm(delta, dtype=torch.float64)
    u, s, vh = closest_of_rank(delta, rank)
    layer = balanced_factors(u, s, vh, kernel)
    if not size:
        return layer, 0.0
    missing = torch.linalg.vector_norm(delta - layer_delta(LOW_RANK, layer), dtype=torch.float64)
    return layer, float(missing / size)


def _weighted(kind: str, layer: LayerState, weight: float) -> LayerState:
    name = FILE_RULES[kind].row_factors(layer.tensors)[0][0]
    tensors = {**layer.tensors, name: layer.tensors[name] * weight}
    return LayerState(tensors, layer.alpha, layer.rank, layer.kernel)


def _refuse_special(state: AdapterState) -> None:
    refuse_multiplying(state.kind, "a sum")
    for name in state.layers:
        if DORA_SCALE in outline_of(state.layers, name).tensors:
            raise AdapterError(
                f"{name} has a DoRA magnitude",
                "adapters without DoRA: what it adds depends on the base's weight, so that no sum "
                "of factors holds it",
                "Merge the adapters into the base, and extract the difference where a file is "
                "needed.",
            )
    for native in state.extras:
        if "set_weight" in patch_outline(state, native):
            raise AdapterError(
                f"{native}.set_weight, which replaces a weight",
                "adapters that add to weights",
                "Merge it into the base instead.",
            )


def _summed_extras(
    inputs: Sequence[tuple[AdapterState, float]],
) -> Mapping[str, Mapping[str, Tensor]]:
    summed: dict[str, dict[str, Tensor]] = {}
    for state, weight in inputs:
        for native, tensors in state.extras.items():
            own = summed.setdefault(native, {})
            for ending, tensor in tensors.items():
                value = tensor * weight
                if ending in own and own[ending].shape != value.shape:
                    raise AdapterError(
                        f"{native}.{ending} has different shapes in the adapters",
                        "adapters of the same base",
                        "Combine adapters that were trained on one base.",
                    )
                own[ending] = own[ending] + value if ending in own else value
    return summed
