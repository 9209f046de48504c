"""`attach_state`: puts a finished adapter, such as one from a file, on a module."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from itertools import product
from types import MappingProxyType
from typing import Any

from torch import nn

from ..config import AdapterConfig
from ..errors import AdapterError
from ..types import AdapterState, LayerState
from .attachment import AttachedAdapter, attach
from .base.joined_linear import JoinedLinear
from .dora_magnitude import DORA_SCALE, axis_of
from .kernels.convolution import CONVOLUTIONS, CORES, layer_sizes
from .kinds.kind import LayerPlan
from .kinds.registry import FILE_RULES, KINDS, matrix_sizes
from .planning import follows_rule
from .targets import nearest_layers
from .warm_start import validate_factors


def attach_state(
    module: nn.Module,
    state: AdapterState,
    whole: Mapping[str, Sequence[str]] = MappingProxyType({}),
) -> AttachedAdapter:
    """Put a given adapter on the layers of a module, in place; `whole` as for `attach`.

    Rank and, for lokr, the way the layers are split are read off the factors' shapes, because files
    of other trainers do not tell.

    Raises:
        AdapterError: When a layer is missing or has another shape, or the adapter holds more than
            factors that fit together.
    """
    _refuse_extras(state)
    targets: dict[str, nn.Module] = {}
    named = dict(module.named_modules())
    for name in (path for layer in state.layers for path in whole.get(layer, (layer,))):
        if not isinstance(named.get(name), (nn.Linear, *CONVOLUTIONS)):
            raise AdapterError(
                f"the adapter's layer {name!r} is not a Linear or convolution of the base",
                "an adapter of this base",
                "Choose the base that it was trained on. "
                f"Nearest layers: {nearest_layers(name, named)}.",
            )
        targets[name] = named[name]
    validate_factors(state)
    config = fitting_config(module, state, whole)
    adapter = attach(module, config, targets, outlines=state.layers, whole=whole)
    adapter.load_state(state)
    return adapter


def _refuse_extras(state: AdapterState) -> None:
    """Without its changes of biases and norms an adapter would compute something else."""
    for layer, tensors in state.extras.items():
        raise AdapterError(
            f"the adapter changes {layer}.{next(iter(tensors))}, and {len(state.extras)} layer(s) "
            "in all, by something that is not a factor",
            "factors alone: whole biases, norms and weights cannot be attached here",
            "Convert the file with extras=drop to go on without them, or load it in ComfyUI.",
        )


def fitting_config(
    module: nn.Module,
    state: AdapterState,
    whole: Mapping[str, Sequence[str]] = MappingProxyType({}),
) -> AdapterConfig:
    """Find the settings that give the state's factors on a module's Linears and convolutions.

    One rank and alpha for each layer; `whole` as for `attach`. Where no rule of splitting explains
    all layers of a lokr, those that explain most.

    Raises:
        AdapterError: When there are none.
    """
    layers = {name: _layer(module, whole.get(name, (name,))) for name in state.layers}
    misfits, best = list(layers), None
    for config in _candidates(state):
        wrong = [n for n in layers if not _fits(n, layers[n], state.layers[n], config)]
        if not wrong:
            return config
        # The rule that explains most layers points at the one that is really different.
        if best is None or len(wrong) < len(misfits):
            misfits, best = wrong, config
    wrong = misfits[0]
    if best and FILE_RULES[state.kind].splits:
        foreign = [
            name
            for name in misfits
            if not _is_own_split(state.kind, layers[name], state.layers[name])
        ]
        if not foreign:
            # Readers take such factors as they are, and so does `attach_state`.
            return best
        wrong = foreign[0]
    found = {name: tuple(t.shape) for name, t in state.layers[wrong].tensors.items()}
    inputs, outputs, kernel = layer_sizes(layers[wrong])
    size = " x ".join(map(str, (outputs, inputs, *kernel)))
    raise AdapterError(
        f"the adapter's factors {found} of {wrong!r} do not fit the layer, which is {size}",
        f"factors of a {state.kind} for a layer of that size, of one rank in each layer",
        "Choose the base that the adapter was trained on. If it is this one, train from the file "
        "with adapter.start_from, which fits other ranks and splits.",
    )


def _layer(module: nn.Module, paths: Sequence[str]) -> nn.Module:
    """A layer, or the one that several are."""
    parts = [module.get_submodule(path) for path in paths]
    return parts[0] if len(parts) == 1 else JoinedLinear(parts)


def _candidates(state: AdapterState) -> Iterator[AdapterConfig]:
    ranks = {re.escape(name): layer.rank for name, layer in state.layers.items()}
    alphas = {re.escape(name): layer.alpha for name, layer in state.layers.items()}
    base = AdapterConfig(
        kind=KINDS[state.kind].name,  # type: ignore[arg-type]
        rank_pattern=ranks,
        alpha_pattern=alphas,
        tucker=any(name in CORES for layer in state.layers.values() for name in layer.tensors),
        **_dora_options(state),
    )
    if not FILE_RULES[state.kind].splits:
        yield base
        return
    flags = (False, True)
    for factor, full, both, turned in product(_factors(state), flags, flags, flags):
        options = {"factor": factor, "full_matrix": full, "decompose_both": both}
        yield base.model_copy(update={**options, "unbalanced": turned})


def _dora_options(state: AdapterState) -> dict[str, Any]:
    for layer in state.layers.values():
        if DORA_SCALE in layer.tensors:
            return {"dora": True, "dora_axis": axis_of(layer.tensors[DORA_SCALE])}
    return {}


def _factors(state: AdapterState) -> list[int]:
    # A split is sorted, so the factor that was asked for may be on either side of it.
    sizes: set[int] = set()
    for layer in state.layers.values():
        for name, tensor in layer.tensors.items():
            if name == DORA_SCALE:
                continue
            sizes |= {tensor.shape[1] if name.endswith("_b") else tensor.shape[0]}
            sizes |= set() if name.endswith(("_a", "_b")) else {tensor.shape[1]}
    return [-1, *sorted(sizes)]


def _fits(name: str, module: nn.Module, layer: LayerState, config: AdapterConfig) -> bool:
    inputs, outputs, kernel = layer_sizes(module)
    plan = LayerPlan(
        name,
        name,
        inputs,
        outputs=outputs,
        rank=layer.rank,
        alpha=layer.alpha,
        config=config,
        kernel=kernel,
    )
    return follows_rule(plan, layer)


def _is_own_split(kind: str, module: nn.Module, layer: LayerState) -> bool:
    """Whether factors stand for a Linear's weight, however they split it."""
    tensors = layer.tensors
    matrices = all(each.dim() == 2 for each in tensors.values())
    if not isinstance(module, nn.Linear) or not matrices:
        return False
    magnitude = tensors.get(DORA_SCALE)
    sides = (module.out_features, module.in_features)
    if magnitude is not None and tuple(magnitude.shape) not in ((sides[0], 1), (1, sides[1])):
        return False
    return matrix_sizes(kind, layer) == sides
