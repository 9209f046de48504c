"""`QuantizedLinear`: a frozen Linear whose weight is kept in fewer bits."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Literal, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..errors import ConfigError
from . import eight_bit_products
from .frozen_linear import FrozenLinear
from .rotation import rotate
from .stored_format import StoredFormat

Compute = Literal["dense", "8bit"]


class QuantizedLinear(FrozenLinear):
    """A frozen Linear that reads its weight from a stored format in each pass.

    No dense copy of the weight outlives a forward pass or a backward pass: autograd keeps none.

    Args:
        shape: ``(out, in)``.
        parts: What holds it; each becomes a parameter without gradient, under its name.
        bias: `[out]`, or None.
        precision: What its numbers are read in where nobody asks for another format, such as for
            their norm: what the model computes in.

    Attributes:
        compute: ``dense`` multiplies the weight as numbers of the input's dtype. ``8bit``
            multiplies it as it is stored, where the kernels take the product; else as ``dense``.
    """

    compute: Compute = "dense"

    def __init__(
        self,
        stored: StoredFormat,
        shape: tuple[int, int],
        parts: Mapping[str, Tensor],
        bias: Tensor | None = None,
        precision: torch.dtype = torch.float32,
    ) -> None:
        nn.Module.__init__(self)
        self.out_features, self.in_features = shape
        self.stored = stored
        self.precision = precision
        self.part_names = tuple(parts)
        for name, part in parts.items():
            self.register_parameter(name, nn.Parameter(part, requires_grad=False))
        held = None if bias is None else nn.Parameter(bias, requires_grad=False)
        self.register_parameter("bias", held)

    def parts(self) -> dict[str, Tensor]:
        """The tensors that hold the weight, as they are now."""
        return {name: cast("Tensor", self._parameters[name]) for name in self.part_names}

    def dense(self, dtype: torch.dtype | None = None) -> Tensor:
        """The weight as numbers: a new tensor `[out, in]`."""
        return self.stored_numbers(dtype)

    def stored_numbers(self, dtype: torch.dtype | None = None) -> Tensor:
        """The numbers that are stored, whatever a subclass computes with."""
        shape = self.out_features, self.in_features
        with torch.no_grad():
            return self.stored.dense(self.parts(), shape, dtype or self.precision)

    def product(self, x: Tensor, *, bias: bool = True) -> Tensor:
        """What `forward` gives, or the same without the bias; no gradient."""
        added = self.bias.to(x.dtype) if bias and self.bias is not None else None
        if not self._in_8_bits(x):
            return F.linear(x, self.stored_numbers(x.dtype), added)
        x = rotate(x) if self.stored.rotates else x
        return eight_bit_products.product(x, self.weight, self._scale(), added)

    def input_gradient(self, gradient: Tensor) -> Tensor:
        """The gradient of the input for one of the output: ``gradient @ W``."""
        if not self._in_8_bits(gradient):
            return gradient @ self.stored_numbers(gradient.dtype)
        found = eight_bit_products.input_gradient(gradient, self.weight, self._scale())
        return rotate(found) if self.stored.rotates else found

    def _in_8_bits(self, rows: Tensor) -> bool:
        return self.compute == "8bit" and eight_bit_products.can_multiply(rows, self.weight)

    def _scale(self) -> Tensor | None:
        return self._parameters.get("weight_scale")

    def extra_repr(self) -> str:
        """What ``print`` shows."""
        return f"{super().extra_repr()}, stored={self.stored.name}, compute={self.compute}"

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> QuantizedLinear:
        """Move the layer as ``module.to`` does; what is stored keeps its number format."""
        kept = {id(part) for part in self.parts().values()}
        self.precision = fn(torch.empty(0, dtype=self.precision)).dtype

        def move(tensor: Tensor) -> Tensor:
            moved = fn(tensor)
            if id(tensor) in kept and moved.dtype != tensor.dtype:
                return tensor.to(moved.device)
            return moved

        return cast("QuantizedLinear", super()._apply(move, recurse))


def set_compute(model: nn.Module, compute: Compute) -> int:
    """Switch a model's layers to a way of multiplying; those that have no other stay dense.

    Args:
        model: With or without an adapter.

    Returns:
        How many layers are multiplied so where they are now.

    Raises:
        ConfigError: When 8 bits are asked for and no weight is kept so.
    """
    layers = [each for each in model.modules() if isinstance(each, QuantizedLinear)]
    layers = [each for each in layers if each.stored.eight_bit]
    if compute == "8bit" and not layers:
        raise ConfigError(
            "memory.compute is 8bit, and the base keeps no weight in 8 bits",
            "weights in int8 or in fp8 (e4m3), which are multiplied as they are stored",
            "Set memory.base_format to int8 or fp8, or leave memory.compute out.",
        )
    for layer in layers:
        layer.compute = compute
    dense = compute == "dense"
    return sum(dense or eight_bit_products.takes_product(layer.weight) for layer in layers)
