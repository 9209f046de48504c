"""The closest adapter of a kind and a size: to another adapter, or to what differs in two bases.

`resize_adapter` gives a whole adapter another rank or another split of its Kronecker factors;
`extract_adapter` makes one of the difference between two bases.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace

import torch
from pydantic import ValidationError
from torch import Tensor

from ...adapters.dora_magnitude import DORA_SCALE
from ...adapters.kernels.convolution import as_matrices
from ...adapters.kinds.kind import LayerPlan
from ...adapters.kinds.registry import FILE_RULES, KINDS, LOW_RANK, layer_delta, refuse_multiplying
from ...adapters.warm_start import resize
from ...config import AdapterConfig
from ...counters import counter_seed
from ...errors import AdapterError, NonFiniteError
from ...tensors.rounding import all_finite
from ...types import AdapterState, LayerState
from ..names.key_layouts import KIND_TITLES

Shapes = dict[str, tuple[int, ...]]


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
    """Give every layer of an adapter other sizes, in float32.

    A smaller rank keeps the largest singular values, which is the closest delta of that rank. A
    larger one is exact; one above a layer's smaller side is taken as that. The scale becomes 1: the
    factors take it up. DoRA's magnitude stays as it is, and so do weight patches. `progress` is
    told of every layer: number done, number of all, name. Gives the adapter, and the relative error
    of each layer's delta (without DoRA).

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

    Its own may come from anybody's header: where they are not such as this trainer writes, the
    defaults stand for them.
    """
    changed = {"kind": state.kind, **changed}
    kept = {n: value for n, value in state.settings.items() if n in AdapterConfig.model_fields}
    try:
        config = AdapterConfig.model_validate({**kept, **changed})
    except ValidationError:
        config = AdapterConfig.model_validate(changed)
    return config.model_dump(mode="json")


def rank_for_error(kind: str, layer: LayerState, error: float) -> int:
    """The smallest rank at which a layer loses no more than a share of its delta's norm.

    The kind has to be one whose closest delta of a smaller rank is known.
    """
    factors = {n: t.double() for n, t in layer.tensors.items() if n != DORA_SCALE}
    values = FILE_RULES[kind].rank_values(as_matrices(factors))
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
            f"a {KIND_TITLES}",
            "Use the file as it is; differences have no rank.",
        )
    refuse_multiplying(state.kind, "another size")
    if sizes.error is not None and (sizes.rank is not None or sizes.factor is not None):
        raise AdapterError(
            "an error beside a rank or factor", "one of them", "Leave the others out."
        )
    if sizes == Sizes():
        raise AdapterError(
            "no size", "a rank, a factor or an error", "Write --rank N, --factor N or --error 0.05."
        )
    splitting = " or ".join(name for name, rules in FILE_RULES.items() if rules.splits)
    known = " or ".join(name for name, rules in FILE_RULES.items() if rules.closest_is_known)
    if sizes.factor is not None and not FILE_RULES[state.kind].splits:
        raise AdapterError(
            f"a factor for an adapter of kind {state.kind}",
            f"kind {splitting}",
            "Give a rank instead.",
        )
    if sizes.error is not None and not FILE_RULES[state.kind].closest_is_known:
        raise AdapterError(
            f"a {state.kind} and an error to stay below",
            f"a {known}: no method finds the closest {state.kind} of a smaller rank",
            f"Make a {LOW_RANK} of it: adapter-trainer combine IN OUT --rank N reports the error.",
        )


def _resize_layer(
    name: str, kind: str, layer: LayerState, sizes: Sizes
) -> tuple[LayerState, float]:
    rank = sizes.rank or layer.rank
    if sizes.error is not None:
        rank = rank_for_error(kind, layer, sizes.error)
    rank, shapes = FILE_RULES[kind].resized_shapes(layer, rank, sizes.factor)
    kernel = next((shape[2:] for shape in shapes.values() if math.prod(shape[2:]) > 1), ())
    try:
        fitted = resize(kind, layer, _fresh(name, kind, shapes), 1.0)
    except AdapterError as error:
        raise AdapterError(
            f"{name}: {error.found}",
            error.expected,
            f"{error.remedy.replace('adapter.', '')} To make a {LOW_RANK} of it: adapter-trainer "
            "combine IN OUT --rank N.",
        ) from error
    tensors = dict(fitted.tensors)
    if DORA_SCALE in layer.tensors:
        tensors[DORA_SCALE] = layer.tensors[DORA_SCALE]
    return LayerState(tensors, float(rank), rank, layer.kernel or kernel), fitted.error


def _fresh(name: str, kind: str, shapes: Shapes) -> dict[str, Tensor]:
    """Initialization of the wanted factors, so that a larger rank can go on learning."""
    fresh: dict[str, Tensor] = {}
    for factor, shape in shapes.items():
        tensor = torch.zeros(shape)
        if factor in KINDS[kind].initializers:
            seed = counter_seed(0, "resize", name, factor)
            KINDS[kind].initializers[factor](tensor, torch.Generator().manual_seed(seed))
        fresh[factor] = tensor
    return fresh


KINDS_EXTRACTED = tuple(name for name, rules in FILE_RULES.items() if rules.closest_is_known)


@dataclass(frozen=True, slots=True)
class ExtractedLayer:
    """One layer of an extracted adapter.

    Attributes:
        state: Its factors in float32.
        error: Norm of what they miss of the difference, over the norm of the difference.
    """

    state: LayerState
    error: float


def extract_adapter(
    differences: Iterable[tuple[str, Tensor]], config: AdapterConfig
) -> tuple[AdapterState, dict[str, float]]:
    """Make an adapter of weight differences, as `extract_layer` takes them, one after the other.

    Differences that are zero are to be left out. The settings are kind, rank, factor,
    ``full_matrix`` and ``decompose_both``. Gives the adapter and each layer's error: the norm of
    what the factors miss of the difference, over the norm of the difference.

    Raises:
        AdapterError: When there is no difference, or for another kind.
        NonFiniteError: When a difference is not finite.
    """
    layers: dict[str, LayerState] = {}
    errors: dict[str, float] = {}
    for name, difference in differences:
        extracted = extract_layer(name, difference, config)
        layers[name] = extracted.state
        errors[name] = extracted.error
    if not layers:
        raise AdapterError(
            "two bases without a difference in the chosen layers",
            "at least one layer whose weight differs",
            "Name the tuned base, or choose more layers: targets=all_linear.",
        )
    ranks = {layer.rank for layer in layers.values()}
    settings = config.model_dump(mode="json")
    if len(ranks) == 1:
        settings["rank"] = ranks.pop()
    return AdapterState(config.kind, layers, settings), errors


def extract_layer(name: str, difference: Tensor, config: AdapterConfig) -> ExtractedLayer:
    """Make the factors of a layer's difference, `[out, in]` or `[out, in, *kernel]`, not zero.

    A lora is the product of the largest singular values with their vectors: no other of that rank
    is closer. A lokr is the closest Kronecker product of the sizes that the factor gives, the
    second factor of which is then cut to the rank, unless the rank keeps it whole; without that cut
    no other of these sizes is closer. A rank above the layer's smaller side is taken as that.

    Raises:
        AdapterError: For a kind that is not extracted.
        NonFiniteError: When the difference is not finite.
    """
    if config.kind not in KINDS_EXTRACTED:
        raise AdapterError(
            f"kind={config.kind}",
            f"a kind of {', '.join(KINDS_EXTRACTED)}: no method finds the closest {config.kind}",
            f"Extract a {' or a '.join(KINDS_EXTRACTED)}.",
        )
    if not all_finite(difference):
        raise NonFiniteError(
            f"{name} has a weight that is not finite in one of the bases",
            "finite weights",
            "Download or copy that base again.",
        )
    matrix = difference.flatten(1)
    matrix = matrix if matrix.dtype == torch.float64 else matrix.float()
    outputs, inputs, *kernel = difference.shape
    rank = float(config.rank)
    plan = LayerPlan(
        name,
        name,
        inputs,
        outputs=outputs,
        rank=config.rank,
        alpha=rank,
        config=config,
        kernel=tuple(kernel),
    )
    rules = FILE_RULES[config.kind]
    state = rules.extract(plan, matrix)
    if rules.splits:
        # The extracted factors are to stand without a scale, so that the wanted one is 1.
        fitted = resize(config.kind, state, KINDS[config.kind].initial_factors(plan, 0), 1.0)
        state = replace(state, tensors=dict(fitted.tensors))
    return ExtractedLayer(state, _error(config.kind, state, matrix))


def _error(kind: str, state: LayerState, matrix: Tensor) -> float:
    delta = layer_delta(kind, state)
    missing = torch.linalg.vector_norm(matrix - delta, dtype=torch.float64)
    return float(missing / torch.linalg.vector_norm(matrix, dtype=torch.float64))
