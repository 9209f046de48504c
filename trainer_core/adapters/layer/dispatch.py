"""In which form, and in what precision, a frozen Linear and its adapter are computed."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import Any, ClassVar, Protocol

import torch
from torch import Tensor, nn

from ...config import AdapterConfig
from ..base.dense_weight import DENSE_DTYPES, PLAIN_TYPES
from ..kernels.adapter_kernel import Operands
from ..kinds.kind import Kind

ADAPTER_NAME = "default"
"""PEFT's name for the adapter; one module carries one of ours."""

_ACTIVE = (ADAPTER_NAME, [ADAPTER_NAME])


class AdaptedLayer(Protocol):
    """What modules below `FactorLayer` ask of one."""

    kind: ClassVar[Kind]
    config: AdapterConfig
    layer_name: str
    strength: float
    scaling: dict[str, float]
    in_features: int
    shared: Any
    training: bool
    drops: bool
    merged_adapters: list[str]
    _disable_adapters: bool
    _active_adapter: str | list[str]
    _modules: dict[str, nn.Module | None]

    @property
    def base_weight(self) -> Tensor: ...  # noqa: D102
    @property
    def weight_shape(self) -> tuple[int, ...]: ...  # noqa: D102
    def get_base_layer(self) -> nn.Module: ...  # noqa: D102
    def frozen_weight(self) -> Tensor: ...  # noqa: D102
    def factors(self) -> dict[str, nn.Parameter]: ...  # noqa: D102
    def equation_factors(self) -> dict[str, Tensor]: ...  # noqa: D102
    def factors_on(self, device: torch.device) -> dict[str, Tensor]: ...  # noqa: D102
    def operands_for(self, x: Tensor, factors: Mapping[str, Tensor]) -> Operands: ...  # noqa: D102


def is_watched(layer: nn.Module) -> bool:
    """Whether somebody's hook or replaced forward wants this layer to be called."""
    return bool(
        layer._forward_hooks
        or layer._forward_pre_hooks
        or layer._backward_hooks
        or layer._backward_pre_hooks
        or "forward" in layer.__dict__
    )


def computes_alone(layer: AdaptedLayer, x: Tensor) -> bool:
    """Whether this adapter is the only one, drops nothing, and takes x in x's own precision."""
    if layer._disable_adapters or layer.merged_adapters or layer._active_adapter not in _ACTIVE:
        return False
    if layer.training and layer.drops:
        return False
    device = x.device.type
    return device != "meta" and not torch.is_autocast_enabled(device)


def fusable_base(layer: AdaptedLayer, x: Tensor) -> tuple[Tensor, Tensor | None] | None:
    """Weight and bias of an ordinary frozen Linear in the precision, and on the device, of x.

    None where the base is something else, or wants to be called itself. It is asked at every call,
    so that it calls nothing of Python's itself: the module's own dictionaries are where torch keeps
    these things.
    """
    base = layer._modules["base_layer"]
    if type(base) is not nn.Linear or base._forward_hooks or base._forward_pre_hooks:
        return None
    if base._backward_hooks or base._backward_pre_hooks or "forward" in base.__dict__:
        return None
    weight, bias = base._parameters.get("weight"), base._parameters.get("bias")
    if weight is None:
        # FSDP puts whole tensors in the parameters' places while a module runs.
        weight, bias = base.weight, base.bias
    if type(weight) not in PLAIN_TYPES or weight.requires_grad or weight.dtype not in DENSE_DTYPES:
        return None
    if bias is not None and bias.requires_grad:
        return None
    return (weight, bias) if weight.dtype == x.dtype and weight.device == x.device else None


def without_autocast(device: torch.device) -> AbstractContextManager[object]:
    """Compute in the tensors' own precision: autocast would round products of float32 factors."""
    if device.type == "meta" or not torch.is_autocast_enabled(device.type):
        return nullcontext()
    return torch.autocast(device.type, enabled=False)


def keeping_precision(
    convert: Callable[[Tensor], Tensor], kept: Iterable[Tensor]
) -> Callable[[Tensor], Tensor]:
    """Let `convert`, as ``module.to`` has it, only move kept tensors (ids) that it would cut."""
    own = {id(tensor): tensor for tensor in kept}

    def apply(tensor: Tensor) -> Tensor:
        converted = convert(tensor)
        if id(tensor) in own and converted.dtype.itemsize < tensor.dtype.itemsize:
            return tensor.to(converted.device)
        return converted

    return apply
