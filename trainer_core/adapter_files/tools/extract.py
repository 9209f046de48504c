"""Make an adapter of the difference between two bases: the closest one of its kind and size."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from ...adapters.kinds.kind import LayerPlan
from ...adapters.kinds.registry import FILE_RULES, KINDS, layer_delta
from ...adapters.warm_start import resize
from ...config import AdapterConfig
from ...errors import AdapterError, NonFiniteError
from ...tensors.finiteness import all_finite
from ...types import AdapterState, LayerState

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
    """Make an adapter of weight differences.

    Args:
        differences: Path of a layer and its difference, as `extract_layer` takes it; those that
            are zero are to be left out. One is looked at after the other.
        config: Kind, rank, factor, ``full_matrix`` and ``decompose_both``.

    Returns:
        The adapter and each layer's error.

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
    """Make the factors of one layer.

    A lora is the product of the largest singular values with their vectors: no other of that rank
    is closer. A lokr is the closest Kronecker product of the sizes that the factor gives, the
    second factor of which is then cut to the rank, unless the rank keeps it whole; without that cut
    no other of these sizes is closer.

    Args:
        name: The layer, for messages.
        difference: `[out, in]`, or `[out, in, *kernel]` of a convolution, not zero.
        config: As in `extract_adapter`. A rank above the layer's smaller side is taken as that.

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
    plan = LayerPlan(name, name, inputs, outputs, config.rank, rank, config, tuple(kernel))
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
