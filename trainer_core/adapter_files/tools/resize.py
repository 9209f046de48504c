"""Give a whole adapter another rank or another split of its Kronecker factors."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
from pydantic import ValidationError
from torch import Tensor

from ...adapters.dora import DORA_SCALE
from ...adapters.kernels.convolution import as_matrices
from ...adapters.kinds.factorization import factorize
from ...adapters.kinds.registry import KINDS
from ...adapters.resize import resize, spectrum_of_product
from ...config import AdapterConfig
from ...counters import counter_seed
from ...errors import AdapterError
from ...types import AdapterState, LayerState
from ..factors.fuse import split_sizes

Shapes = dict[str, tuple[int, ...]]
Matrices = Mapping[str, Tensor]


@dataclass(frozen=True, slots=True)
class Sizes:
    """The wanted sizes; at least one is set, and `error` alone.

    Attributes:
        rank: Rank of every layer.
        factor: lokr: size of the small factor, -1 for the most balanced split.
        error: Largest relative error of a layer's delta, from which its rank follows.
    """

    rank: int | None = None
    factor: int | None = None
    error: float | None = None


def resize_adapter(
    state: AdapterState, sizes: Sizes, progress: Callable[[int, int, str], None] | None = None
) -> tuple[AdapterState, dict[str, float]]:
    """Give every layer of an adapter other sizes.

    A smaller rank keeps the largest singular values, which is the closest delta of that rank. A
    larger one is exact. The scale becomes 1: the factors take it up. DoRA's lengths stay as they
    are, and so do differences that are no factors.

    Args:
        state: The adapter.
        sizes: What is wanted. A rank above a layer's smaller side is taken as that.
        progress: Is told of every layer: number done, number of all, name.

    Returns:
        The adapter in float32, and the relative error of each layer's delta (without DoRA).

    Raises:
        AdapterError: For sizes that contradict each other or do not suit the kind.
    """
    _check(state, sizes)
    layers: dict[str, LayerState] = {}
    errors: dict[str, float] = {}
    for name in state.layers:
        layers[name], errors[name] = _resize_layer(name, state.kind, state.layers[name], sizes)
        if progress is not None:
            progress(len(layers), len(state.layers), name)
    usual = Counter(layer.rank for layer in layers.values()).most_common(1)[0][0]
    changed: dict[str, object] = {"rank": usual, "alpha": float(usual)}
    changed |= {} if sizes.factor is None else {"factor": sizes.factor, "unbalanced": False}
    settings = known_settings(state, changed)
    return AdapterState(state.kind, layers, settings, state.extras), errors


def known_settings(state: AdapterState, changed: Mapping[str, object]) -> dict[str, object]:
    """An adapter's settings with some of them changed.

    Args:
        state: The adapter. Its settings may come from anybody's header: where they are not such as
            this trainer writes, the defaults stand for them.
        changed: Those that are other now.
    """
    changed = {"kind": state.kind, **changed}
    kept = {n: value for n, value in state.settings.items() if n in AdapterConfig.model_fields}
    try:
        config = AdapterConfig.model_validate({**kept, **changed})
    except ValidationError:
        config = AdapterConfig.model_validate(changed)
    return config.model_dump(mode="json")


def rank_for_error(kind: str, layer: LayerState, error: float) -> int:
    """The smallest rank at which a layer loses no more than a share of its delta.

    Of a lokr it is the rank of the second factor, which loses as much of itself as the delta loses
    of the delta.

    Args:
        kind: ``lora`` or ``lokr``.
        layer: The factors.
        error: Norm of what is lost over the norm of the delta.
    """
    factors = _doubled(layer)
    if kind == "lora":
        values = spectrum_of_product(factors["lora_up"], factors["lora_down"])[1]
    elif "lokr_w2" in factors:
        values = torch.linalg.svdvals(factors["lokr_w2"])
    else:
        values = spectrum_of_product(factors["lokr_w2_a"], factors["lokr_w2_b"])[1]
    # What is lost by keeping the first k values, for every k from 0 on.
    lost = values.flip(0).square().cumsum(0).flip(0)
    # Rounding in the last digits must not ask for one rank more.
    allowed = lost[0] * error**2 * (1 + 1e-9)
    return max(1, int((lost > allowed).sum()))


def _check(state: AdapterState, sizes: Sizes) -> None:
    if not state.layers:
        raise AdapterError(
            f"no factors to resize: the adapter has {len(state.extras)} layer(s) with differences "
            "alone",
            "a LoRA, LoHa or LoKr",
            "Use the file as it is; differences have no rank.",
        )
    if sizes.error is not None and (sizes.rank is not None or sizes.factor is not None):
        raise AdapterError(
            "an error beside a rank or factor", "one of them", "Leave the others out."
        )
    if sizes == Sizes():
        raise AdapterError(
            "no size", "a rank, a factor or an error", "Write --rank N, --factor N or --error 0.05."
        )
    if sizes.factor is not None and state.kind != "lokr":
        raise AdapterError(
            f"a factor for an adapter of kind {state.kind}", "kind lokr", "Give a rank instead."
        )
    if sizes.error is not None and state.kind == "loha":
        raise AdapterError(
            "a loha and an error to stay below",
            "a lora or lokr: no method finds the closest loha of a smaller rank",
            "Make a lora of it: adapter-trainer combine IN OUT --rank N reports the error.",
        )


def _resize_layer(
    name: str, kind: str, layer: LayerState, sizes: Sizes
) -> tuple[LayerState, float]:
    rank = sizes.rank or layer.rank
    if sizes.error is not None:
        rank = rank_for_error(kind, layer, sizes.error)
    rank, shapes = _SHAPES[kind](layer, rank, sizes.factor)
    kernel = next((shape[2:] for shape in shapes.values() if math.prod(shape[2:]) > 1), ())
    try:
        fitted = resize(kind, layer, _fresh(name, kind, shapes), 1.0)
    except AdapterError as error:
        raise AdapterError(
            f"{name}: {error.found}",
            error.expected,
            f"{error.remedy.replace('adapter.', '')} To make a lora of it: adapter-trainer combine "
            "IN OUT --rank N.",
        ) from error
    tensors = dict(fitted.tensors)
    if DORA_SCALE in layer.tensors:
        tensors[DORA_SCALE] = layer.tensors[DORA_SCALE]
    return LayerState(tensors, float(rank), rank, layer.kernel or kernel), fitted.error


def _doubled(layer: LayerState) -> dict[str, Tensor]:
    tensors = {n: t.double() for n, t in layer.tensors.items() if n != DORA_SCALE}
    return as_matrices(tensors)


def _lora_shapes(layer: LayerState, rank: int, factor: int | None) -> tuple[int, Shapes]:
    del factor
    up, down = layer.tensors["lora_up"], layer.tensors["lora_down"]
    core = layer.tensors.get("lora_mid")
    window = tuple(down.shape[2:]) if core is None else tuple(core.shape[2:])
    inputs = down.shape[1] * math.prod(window)
    rank = min(rank, up.shape[0], inputs)
    ones = (1,) * (up.dim() - 2)
    shapes = {"lora_down": (rank, down.shape[1], *window), "lora_up": (up.shape[0], rank, *ones)}
    return rank, shapes


def _loha_shapes(layer: LayerState, rank: int, factor: int | None) -> tuple[int, Shapes]:
    del factor
    factors = as_matrices(layer.tensors)
    rows, columns = factors["hada_w1_a"].shape[0], factors["hada_w1_b"].shape[1]
    shapes: Shapes = {}
    for part in ("1", "2"):
        shapes |= {f"hada_w{part}_a": (rows, rank), f"hada_w{part}_b": (rank, columns)}
    return rank, shapes


def _lokr_shapes(layer: LayerState, rank: int, factor: int | None) -> tuple[int, Shapes]:
    factors = as_matrices(layer.tensors)
    outputs, inputs = split_sizes(factors)
    window = _window(layer)
    # The window belongs to the inputs of the second factor.
    inputs = inputs[0], inputs[1] // math.prod(window)
    if factor is not None:
        outputs, inputs = (factorize(a * b, factor) for a, b in (outputs, inputs))
    shapes: Shapes = {"lokr_w1": (outputs[0], inputs[0])}
    first_rank = min(rank, outputs[0], inputs[0])
    if "lokr_w1_a" in factors and factor is None:
        first_rank = min(rank, factors["lokr_w1_a"].shape[1])
        shapes = {"lokr_w1_a": (outputs[0], first_rank), "lokr_w1_b": (first_rank, inputs[0])}
    if rank >= max(outputs[1], inputs[1]) / 2:
        return rank, shapes | {"lokr_w2": (outputs[1], inputs[1], *window)}
    columns = inputs[1] * math.prod(window)
    return rank, shapes | {"lokr_w2_a": (outputs[1], rank), "lokr_w2_b": (rank, columns)}


def _window(layer: LayerState) -> tuple[int, ...]:
    if layer.kernel:
        return layer.kernel
    shown = layer.tensors.get("lokr_t2", layer.tensors.get("lokr_w2"))
    return () if shown is None else tuple(shown.shape[2:])


_SHAPES = {"lora": _lora_shapes, "loha": _loha_shapes, "lokr": _lokr_shapes}


def _fresh(name: str, kind: str, shapes: Shapes) -> dict[str, Tensor]:
    """First values of the wanted factors, so that a larger rank can go on learning."""
    fresh: dict[str, Tensor] = {}
    for factor, shape in shapes.items():
        tensor = torch.zeros(shape)
        if factor in KINDS[kind].initializers:
            seed = counter_seed(0, "resize", name, factor)
            KINDS[kind].initializers[factor](tensor, torch.Generator().manual_seed(seed))
        fresh[factor] = tensor
    return fresh


__all__ = ["Sizes", "known_settings", "rank_for_error", "resize_adapter"]
