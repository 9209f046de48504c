"""What `attach` asks of the layers that it was told to adapt, before it changes anything."""

from __future__ import annotations

from collections.abc import Mapping
from typing import cast

import torch
from torch import Tensor, nn

from ...errors import AdapterError
from ..kernels.convolution import CONVOLUTIONS, layer_sizes
from ..targets import Layer


def check_bases(module: nn.Module, layers: Mapping[str, Layer]) -> None:
    """Refuse layers that an adapter could not be trained on.

    Args:
        module: What is adapted.
        layers: The chosen layers by name.

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
    plain = type(weight) in (Tensor, nn.Parameter)
    if plain and not weight.dtype.is_floating_point and _is_torchs(layer):
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
