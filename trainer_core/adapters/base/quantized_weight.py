"""Weights that a library keeps in fewer bits: how to read them, what to mind with their layers.

No library is imported unless one of its weights is met; they are known by the names of their
classes, as PEFT knows them.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn

from ...errors import AdapterError
from ...quantization.frozen_linear import FrozenLinear, FrozenWeight

STORED_DTYPES = (torch.float8_e4m3fn, torch.float8_e5m2)
"""Number formats that torch stores, but computes with only when they are cast."""

_FOUR_BIT, _EIGHT_BIT = "Params4bit", "Int8Params"
_STEPS = 127.0
"""What bitsandbytes divides the largest number of a row by: the steps of an int8 to one side."""

_REPACKS = "support_avx512bf16_for_cpu"
"""On a Linear4bit: whether it repacks its weight for a faster kernel when nobody trains."""


def read_quantized(layer: nn.Module, weight: Tensor, dtype: torch.dtype | None) -> Tensor:
    """Write a layer's quantized weight out as numbers, in a new tensor.

    The weight is of a class of bitsandbytes, torchao, quanto or HQQ, and stays as it is; nothing is
    kept. The dtype counts where the format leaves a choice.

    Raises:
        TypeError, AttributeError, NotImplementedError, ValueError: When it cannot be read.
    """
    name = type(weight).__name__
    if name == _FOUR_BIT:
        return _read_four_bit(layer, weight)
    if name == _EIGHT_BIT:
        return _read_eight_bit(layer, weight, dtype)
    if type(weight).dequantize is not Tensor.dequantize:
        return weight.dequantize()
    from peft.utils.integrations import dequantize_module_weight

    return dequantize_module_weight(layer)


def _read_four_bit(layer: nn.Module, weight: Any) -> Tensor:
    state = getattr(weight, "quant_state", None) or getattr(layer, "quant_state", None)
    if state is None:
        raise TypeError("bitsandbytes quantizes it when the model is moved to its device")
    if _is_repacked(state):
        raise TypeError("bitsandbytes has packed it for inference on the CPU")
    if state.absmax.device != weight.device:
        # The packed numbers alone were moved; the layer's own state is left where it is.
        state = copy.deepcopy(state)
        state.to(weight.device)
    from bitsandbytes.functional import dequantize_4bit  # pyright: ignore[reportMissingImports]

    return dequantize_4bit(weight.data, state)


def _read_eight_bit(layer: nn.Module, weight: Any, dtype: torch.dtype | None) -> Tensor:
    if weight.dtype != torch.int8:
        return weight.data
    # PEFT's way to read it puts another parameter into the layer. The rows' largest numbers lie
    # with the weight before the first forward pass, and with the layer after it.
    largest = getattr(getattr(layer, "state", None), "SCB", None)
    largest = getattr(weight, "SCB", None) if largest is None else largest
    if largest is None:
        raise TypeError("bitsandbytes has no scales for it")
    # It was float16 when it was quantized, which holds all of its numbers.
    result = torch.empty(weight.shape, dtype=dtype or torch.float16, device=weight.device)
    steps = largest.to(weight.device).view(-1, 1) / _STEPS
    return torch.mul(weight.data, steps, out=result)


def is_read_back(layer: nn.Module) -> bool:
    """Whether a Linear's gradient is the product with its weight as it is read.

    So it is with formats that hold the weight in fewer bits and compute with its numbers, in the
    layers that the libraries themselves make of them, and in our own.
    """
    if isinstance(layer, FrozenLinear):
        return True
    weight = layer.weight
    if not isinstance(weight, Tensor) or weight.requires_grad:
        return False
    if type(weight).__name__ in (_FOUR_BIT, _EIGHT_BIT):
        return type(layer).__module__.startswith("bitsandbytes.") and not weight.is_floating_point()
    if type(layer) is not nn.Linear or not type(weight).__module__.startswith("torchao."):
        return False
    return getattr(weight, "act_quant_kwargs", None) is None


def is_cast_around(layer: nn.Module) -> bool:
    """Whether Diffusers keeps a Linear's weight in 8 bits and casts it around each forward pass.

    Its gradient too is the product with the weight as it is read then.
    """
    registry = vars(layer).get("_diffusers_hook")
    hooks = getattr(registry, "hooks", None)
    if type(layer) is not nn.Linear or hooks is None or list(hooks) != ["layerwise_casting"]:
        return False
    return layer.weight.dtype in STORED_DTYPES and not layer.weight.requires_grad


def tensors_behind(layer: nn.Module, weight: Tensor) -> Iterator[Tensor]:
    """The plain tensors that hold a weight: itself, or what its class is made of."""
    if isinstance(layer, FrozenWeight):
        yield from layer.parts().values()
        return
    if hasattr(type(weight), "__tensor_flatten__"):
        names, _ = weight.__tensor_flatten__()  # type: ignore[attr-defined]
        for name in names:
            yield from tensors_behind(layer, getattr(weight, name))
        return
    yield weight
    if type(weight) in (Tensor, nn.Parameter):
        return
    states = (getattr(weight, "quant_state", None), weight, getattr(layer, "state", None))
    for state, name in zip(states, ("absmax", "SCB", "SCB"), strict=True):
        scales = getattr(state, name, None)
        if isinstance(scales, Tensor):
            yield scales


def _is_repacked(state: Any) -> bool:
    return bool(getattr(state, "packing_format_for_cpu", False))


def repacking_layers(module: nn.Module) -> list[nn.Module]:
    """The 4-bit layers that would repack their weight in a forward pass without gradients.

    On CPUs with bfloat16 instructions bitsandbytes does so in evaluation mode: the weight
    loses bits for good, and no gradient passes through the layer from then on.

    Raises:
        AdapterError: When a layer has already done it.
    """
    found = []
    for name, layer in module.named_modules():
        if not hasattr(layer, _REPACKS):
            continue
        if _is_repacked(getattr(layer.weight, "quant_state", None)):
            raise AdapterError(
                f"{name or 'the module'} is a {type(layer).__name__} whose weight bitsandbytes has "
                "packed for inference on the CPU: no gradient passes through it",
                "a 4-bit weight as it was loaded",
                "Load the base again, and attach the adapter before the first image.",
            )
        if getattr(layer, _REPACKS):
            found.append(layer)
    return found


def set_repacking(layers: list[nn.Module], allowed: bool) -> None:
    """Allow or forbid layers to repack their weight (`repacking_layers`)."""
    for layer in layers:
        setattr(layer, _REPACKS, allowed)
