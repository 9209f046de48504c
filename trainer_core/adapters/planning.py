"""The plan of each chosen layer: rank, alpha, and what its layer or kind cannot do."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import replace
from typing import cast

import torch
from torch import Tensor, nn

from ..config import AdapterConfig
from ..config.patterns import compile_pattern
from ..errors import AdapterError
from ..types import LayerState
from .base.dense_weight import PLAIN_TYPES
from .dora_magnitude import DORA_SCALE
from .kernels.convolution import CONVOLUTIONS, layer_sizes, reshaped_factors
from .kinds.kind import LayerPlan
from .kinds.registry import KINDS
from .targets import Layer, nearest_layers

_LINEAR_INITS = {"pissa", "olora", "eva"}
"""Initializations that come from a layer's weight or inputs as a matrix."""


def plan_layers(
    layers: Mapping[str, Layer],
    config: AdapterConfig,
    outlines: Mapping[str, LayerState] | None = None,
) -> tuple[LayerPlan, ...]:
    """Give each layer its rank and alpha: a plan each, in the order of `layers`.

    Outlines are factors that come from elsewhere: they have ranks, alphas and shapes.

    Raises:
        AdapterError: For a rank, alpha or pattern that does not fit; the message names the setting.
    """
    if outlines is None:
        plans = list(_new_plans(layers, config))
    else:
        plans = [_given_plan(name, layers[name], outlines[name], config) for name in layers]
    for plan in plans:
        _check(plan, layers[plan.name].module)
    if config.tucker:
        _check_tucker(plans, config)
    return tuple(plans)


def _given_plan(name: str, layer: Layer, state: LayerState, config: AdapterConfig) -> LayerPlan:
    """The plan of a layer whose factors are given."""
    inputs, outputs, kernel = layer_sizes(layer.module)
    plan = LayerPlan(
        name,
        layer.paths[0],
        inputs,
        outputs=outputs,
        rank=state.rank,
        alpha=state.alpha,
        config=config,
        kernel=kernel,
    )
    if follows_rule(plan, state):
        return plan
    shapes = {factor: tuple(tensor.shape) for factor, tensor in state.tensors.items()}
    shapes.pop(DORA_SCALE, None)
    return replace(plan, outline=shapes)


def follows_rule(plan: LayerPlan, state: LayerState) -> bool:
    """Whether the settings of a plan give the very factors that a layer's state has."""
    wanted = KINDS[plan.config.kind].layer_shapes(plan)
    found = reshaped_factors(state.tensors, wanted)
    return wanted == {factor: tuple(tensor.shape) for factor, tensor in found.items()}


def _new_plans(layers: Mapping[str, Layer], config: AdapterConfig) -> Iterator[LayerPlan]:
    ranks = by_pattern(layers, config.rank_pattern, "adapter.rank_pattern")
    alphas = by_pattern(layers, config.alpha_pattern, "adapter.alpha_pattern")
    for name, layer in layers.items():
        inputs, outputs, kernel = layer_sizes(layer.module)
        rank = KINDS[config.kind].layer_rank(outputs, int(ranks.get(name, config.rank)))
        alpha = alphas.get(name, config.alpha)
        alpha = float(rank) if alpha is None else alpha
        if config.rslora:
            # Scale alpha / sqrt(rank), said by the rule that every reader has: alpha / rank.
            alpha *= math.sqrt(rank)
        stored = _as_stored(alpha, name)
        plan = LayerPlan(
            name,
            layer.paths[0],
            inputs,
            outputs=outputs,
            rank=rank,
            alpha=stored,
            config=config,
            kernel=kernel,
        )
        _check_rank(plan, "adapter.rank_pattern" if name in ranks else "adapter.rank")
        yield plan


def by_pattern(
    layers: Collection[str], patterns: Mapping[str, float], setting: str
) -> dict[str, float]:
    """Give layers the positive number of the first pattern that matches their whole name.

    Layers that no pattern matches are left out. The setting is where the patterns stand in the run
    file, for messages.

    Raises:
        AdapterError: For a pattern that matches nothing, or a value that is not positive; of
            decays 0 is one.
    """
    may_be_zero = setting.endswith("decay_pattern")
    values: dict[str, float] = {}
    for pattern, value in patterns.items():
        expression = compile_pattern(pattern, setting)
        matches = [name for name in layers if expression.fullmatch(name)]
        if not matches:
            raise AdapterError(
                f"{setting}: the pattern {pattern!r} matches no adapted layer",
                "a regular expression that matches the whole dotted name of an adapted layer",
                f"Remove it or correct it. Nearest names: {nearest_layers(pattern, layers)}.",
            )
        least = 1.0 if setting.endswith("rank_pattern") else 0.0
        positive = value > 0 or (value == 0 and may_be_zero)
        if not (math.isfinite(value) and positive and value >= least):
            raise AdapterError(
                f"{setting}: {pattern!r} is set to {value}",
                "a positive number",
                "Give a positive value, or remove the pattern.",
            )
        for name in matches:
            values.setdefault(name, value)
    return values


def _as_stored(alpha: float, name: str) -> float:
    """Round alpha to the float32 that adapter files hold: a resumed run has the same scale."""
    stored = float(torch.tensor(alpha, dtype=torch.float32))
    if not math.isfinite(stored) or stored == 0.0:
        raise AdapterError(
            f"adapter.alpha is {alpha:g} for {name}, which is {stored:g} in float32",
            "a number that float32 holds, as adapter files do",
            "Set adapter.alpha near the rank, or leave it out.",
        )
    return stored


def _check(plan: LayerPlan, layer: nn.Module) -> None:
    groups = layer.groups if isinstance(layer, CONVOLUTIONS) else 1
    if groups != 1 and KINDS[plan.config.kind].crosses_groups:
        others = " or ".join(name for name, kind in KINDS.items() if not kind.crosses_groups)
        raise AdapterError(
            f"{plan.name} is a {type(layer).__name__} with {groups} groups",
            f"for {plan.config.kind}, a layer without groups: its blocks of channels would cut "
            "across them",
            f"Leave it out with adapter.exclude, or set adapter.kind to {others}.",
        )
    problem = KINDS[plan.config.kind].problem(plan)
    if problem is not None:
        raise AdapterError(*problem)
    if plan.config.dora and plan.outputs == 1:
        raise AdapterError(
            f"adapter.dora is set, and {plan.name} has one output",
            "layers with more outputs: readers tell the axis of the magnitude by their shape",
            "Leave the layer out with adapter.exclude, or adapter.dora out.",
        )
    if plan.kernel and plan.config.init in _LINEAR_INITS:
        raise AdapterError(
            f"adapter.init is {plan.config.init}, and {plan.name} is a convolution",
            f"{plan.config.init} on Linear layers only, as in PEFT",
            "Name the layer in adapter.exclude, or set adapter.init to default.",
        )


def _check_tucker(plans: Iterable[LayerPlan], config: AdapterConfig) -> None:
    if not any(plan.tucker for plan in plans):
        raise AdapterError(
            "adapter.tucker is set, and no adapted layer has a window larger than one place",
            "a convolution whose kernel is larger than 1 among the adapted layers",
            "Leave adapter.tucker out, or name such a layer in adapter.targets.",
        )
    if config.init not in {"default", "lycoris"}:
        raise AdapterError(
            f"adapter.tucker is set and adapter.init is {config.init}",
            "adapter.init default: the others know no core between the two factors",
            "Leave adapter.tucker or adapter.init out.",
        )


def _check_rank(plan: LayerPlan, setting: str) -> None:
    doubled = plan.config.init in KINDS[plan.config.kind].decompositions
    largest = KINDS[plan.config.kind].largest_rank(plan)
    limit = plan.rank if largest is None else largest // (2 if doubled else 1)
    if plan.rank > limit:
        raise AdapterError(
            f"{setting}: rank {plan.rank} for {plan.name}, which is {plan.outputs} x {plan.width}",
            f"a rank of at most {limit} for {plan.config.kind} on this layer"
            + (f": files of an adapter with init {plan.config.init} have twice it" * doubled),
            "Lower the rank, give this layer its own in adapter.rank_pattern, or exclude it.",
        )


def check_bases(module: nn.Module, layers: Mapping[str, Layer]) -> None:
    """Refuse layers that an adapter could not be trained on.

    Raises:
        AdapterError: For a layer without inputs or outputs, with a weight of integers that nobody
            reads as numbers, or whose weight is another layer's too; and in inference mode.
    """
    if torch.is_inference_mode_enabled():
        raise AdapterError(
            "attach is called in inference mode, in which no tensor can be trained later",
            "a call outside of torch.inference_mode()",
            "Call attach under torch.inference_mode(False).",
        )
    for name, layer in layers.items():
        inputs, outputs, _ = layer_sizes(layer.module)
        if not inputs or not outputs:
            raise AdapterError(
                f"{name} has {inputs} inputs and {outputs} outputs",
                "layers with at least one of each",
                "Leave it out with adapter.exclude.",
            )
        _check_numbers(name, layer.module)
    _check_own_weights(module, layers)


def _check_numbers(name: str, layer: nn.Module) -> None:
    weight = cast("Tensor", layer.weight)
    if type(weight) in PLAIN_TYPES and not weight.dtype.is_floating_point and _is_torchs(layer):
        raise AdapterError(
            f"{name} has a weight of {weight.dtype} {tuple(weight.shape)}, with which torch's "
            f"{type(layer).__name__} cannot compute",
            "a floating-point weight, or one of a library that quantizes",
            "Load the base in bf16, or leave the layer out with adapter.exclude.",
        )


def _is_torchs(layer: nn.Module) -> bool:
    """Whether the layer's forward pass is torch's own."""
    known = (nn.Linear, *CONVOLUTIONS)
    return "forward" not in vars(layer) and any(
        type(layer).forward is each.forward for each in known if isinstance(layer, each)
    )


def _check_own_weights(module: nn.Module, layers: Mapping[str, Layer]) -> None:
    """A delta that is merged into one of two such layers would change the other."""
    chosen = {id(layer.module.weight): (name, layer.module) for name, layer in layers.items()}
    for path, part in module.named_modules():
        for parameter in part._parameters.values():
            name, layer = chosen.get(id(parameter), ("", part))
            if layer is not part:
                raise AdapterError(
                    f"{name} and {path or 'the module itself'} share one weight",
                    "layers with a weight of their own: what an adapter adds to one would be added "
                    "to the other",
                    "Leave it out with adapter.exclude, or give one a copy of the weight.",
                )
