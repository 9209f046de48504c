"""`AmendedLinear`: a frozen Linear with the adapters of ``base.adapters`` beside its weight.

The weight itself never changes, so that what was put on can be left out for a while and come back
bit by bit, whatever form the weight has and wherever it lies.

With W the weight and D the delta of an adapter at its strength t, a layer adds ``D x``. With DoRA
it adds, by the stretch s of each row or column,

    t ((s - 1) * (W x) + s * (D x))        over the outputs
    t (W ((s - 1) * x) + D (s * x))        over the inputs

and a kind that multiplies adds ``t (R - 1) W x``. All of it is linear in x: of a pass nothing is
kept. Each adapter is computed from the base's own weight, and their sum counts.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable, Mapping
from typing import Any, Literal, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ...quantization.frozen_linear import FrozenLinear
from ...quantization.quantized_linear import QuantizedLinear
from ..dora_magnitude import Axis
from ..kinds.kind import Kind

Counting = Literal["all", "samples"]
"""Which amendments count: all of them, or those that samples have too."""


class DeltaPath(nn.Module):
    """What an adapter adds to a layer, without a magnitude.

    Attributes:
        turns: Whether it takes what the frozen layer computes, in the place of the input.
    """

    turns = False

    @abstractmethod
    def add(self, x: Tensor) -> Tensor:
        """`[..., in]` to what is added `[..., out]`."""

    @abstractmethod
    def back(self, gradient: Tensor) -> Tensor:
        """The gradient of the input for one of the output."""

    @abstractmethod
    def delta(self, weight: Tensor) -> Tensor:
        """What it adds to the weight `[out, in]`, in the dtype of the weight."""


class ProductPath(DeltaPath):
    """A delta that is a product of two factors.

    Args:
        up: `[out, r]`, with scale and strength in it.
        down: `[r, in]`.
    """

    up: Tensor
    down: Tensor

    def __init__(self, up: Tensor, down: Tensor) -> None:
        super().__init__()
        self.register_buffer("up", up)
        self.register_buffer("down", down)

    def add(self, x: Tensor) -> Tensor:
        """`[..., in]` to what is added `[..., out]`."""
        return F.linear(F.linear(x, self.down.to(x.dtype)), self.up.to(x.dtype))

    def back(self, gradient: Tensor) -> Tensor:
        """The gradient of the input for one of the output."""
        return gradient @ self.up.to(gradient.dtype) @ self.down.to(gradient.dtype)

    def delta(self, weight: Tensor) -> Tensor:
        """What it adds to the weight."""
        return self.up.to(weight) @ self.down.to(weight)


class WholePath(DeltaPath):
    """A delta as it is, which no factors are.

    Args:
        whole: `[out, in]`, with the strength in it.
    """

    whole: Tensor

    def __init__(self, whole: Tensor) -> None:
        super().__init__()
        self.register_buffer("whole", whole)

    def add(self, x: Tensor) -> Tensor:
        """`[..., in]` to what is added `[..., out]`."""
        return F.linear(x, self.whole.to(x.dtype))

    def back(self, gradient: Tensor) -> Tensor:
        """The gradient of the input for one of the output."""
        return gradient @ self.whole.to(gradient.dtype)

    def delta(self, weight: Tensor) -> Tensor:
        """What it adds to the weight."""
        return self.whole.to(weight)


class KindPath(DeltaPath):
    """A delta by a kind's own equation.

    Args:
        factors: By name, as matrices; without a magnitude.
        scale: Multiplies the delta; the strength is in it.
        inputs: How many inputs the layer has.
    """

    def __init__(
        self, kind: Kind, factors: Mapping[str, Tensor], scale: float, inputs: int
    ) -> None:
        super().__init__()
        self.kind, self.scale, self.inputs = kind, scale, inputs
        self.turns = kind.multiplies
        self._names = tuple(factors)
        for name, factor in factors.items():
            self.register_buffer(name, factor)

    def add(self, x: Tensor) -> Tensor:
        """`[..., in]` to what is added `[..., out]`."""
        return self.kind.apply(x, self._factors(), self.scale)

    def back(self, gradient: Tensor) -> Tensor:
        """The gradient of the input for one of the output, which does not depend on the input."""
        width = gradient.shape[-1] if self.turns else self.inputs
        # torch.autograd.grad would do the same, but cannot be compiled inside a backward pass.
        pull = torch.func.vjp(self.add, gradient.new_zeros(*gradient.shape[:-1], width))[1]
        return cast("Tensor", pull(gradient)[0])

    def delta(self, weight: Tensor) -> Tensor:
        """What it adds to the weight."""
        return self.kind.difference(self._factors(), self.scale, lambda: weight).to(weight)

    def _factors(self) -> dict[str, Tensor]:
        return {name: cast("Tensor", self._buffers[name]) for name in self._names}


class Amendment(nn.Module):
    """One adapter's part in a layer.

    Args:
        path: Its delta, with the strength in it.
        in_samples: Whether samples have it too.
        stretch: DoRA's ``s``: `[out]` or `[in]`, at least in float32; None without a magnitude.
    """

    gain: Tensor | None
    stretch: Tensor | None

    def __init__(
        self,
        path: DeltaPath,
        in_samples: bool,
        stretch: Tensor | None = None,
        axis: Axis = "output",
        strength: float = 1.0,
    ) -> None:
        super().__init__()
        self.path, self.in_samples, self.axis = path, in_samples, axis
        self.register_buffer("stretch", stretch)
        self.register_buffer("gain", None if stretch is None else strength * (stretch - 1.0))

    def add(self, x: Tensor) -> Tensor:
        """What its delta adds, of the layer's input, or of what the layer computes."""
        if self.stretch is None:
            return self.path.add(x)
        if self.axis == "input":
            return self.path.add(_times(x, self.stretch))
        return _times(self.path.add(x), self.stretch)

    def back(self, gradient: Tensor) -> Tensor:
        """The gradient for `add`."""
        if self.stretch is None:
            return self.path.back(gradient)
        if self.axis == "output":
            return self.path.back(_times(gradient, self.stretch))
        return _times(self.path.back(gradient), self.stretch)

    def delta(self, weight: Tensor) -> Tensor:
        """All that it adds to a weight `[out, in]`, in the weight's dtype."""
        delta = self.path.delta(weight)
        if self.stretch is None or self.gain is None:
            return delta
        shape = (-1, 1) if self.axis == "output" else (1, -1)
        stretch, gain = (each.to(weight).view(shape) for each in (self.stretch, self.gain))
        return delta * stretch + weight * gain

    def _apply(self, fn: Any, recurse: bool = True) -> Amendment:
        """Move it as ``module.to`` does; its vectors keep their number format."""
        kept = self.stretch, self.gain
        super()._apply(fn, recurse)
        for name, before in zip(("stretch", "gain"), kept, strict=True):
            now = self._buffers[name]
            if before is not None and now is not None and now.dtype != before.dtype:
                self._buffers[name] = before.to(now.device)
        return self


class AmendedLinear(FrozenLinear):
    """A frozen Linear, dense or quantized, and what adapters of the base add to it.

    `amend` makes it of a layer, in place, so that whoever holds the layer or its tensors holds them
    still.

    Attributes:
        amendments: What is added.
        counting: Which of it counts now.
    """

    amendments: nn.ModuleList
    counting: Counting = "all"

    def _base_product(self, x: Tensor, bias: bool) -> Tensor:
        added = self.bias.to(x.dtype) if bias and self.bias is not None else None
        return F.linear(x, self.weight.to(x.device, x.dtype), added)

    def _base_gradient(self, gradient: Tensor) -> Tensor:
        return gradient @ self.weight.to(gradient.device, gradient.dtype)

    def _base_dense(self, dtype: torch.dtype) -> Tensor:
        return self.weight.detach().to(dtype)

    def _precision(self) -> torch.dtype:
        return self.weight.dtype

    def parts(self) -> dict[str, Tensor]:
        """The tensors that hold the base's weight, as they are now."""
        return {"weight": self.weight}

    def dense(self, dtype: torch.dtype | None = None) -> Tensor:
        """The weight with what counts now, as numbers `[out, in]`."""
        wanted = dtype or self._precision()
        with torch.no_grad():
            own = self._base_dense(torch.promote_types(wanted, torch.float32))
            total = own.clone()
            for each in self._counted():
                total += each.delta(own)
            return total.to(wanted)

    def product(self, x: Tensor, *, bias: bool = True) -> Tensor:
        """What `forward` gives, or the same without the bias; no gradient."""
        counted = self._counted()
        rows, columns = _gain(counted, "output"), _gain(counted, "input")
        turning = [each for each in counted if each.path.turns]
        if rows is None and columns is None and not turning:
            y = self._base_product(x, bias)
        else:
            y = self._base_product(x, False)
            plain = y
            if columns is not None:
                y = y + self._base_product(_times(x, columns), False)
            if rows is not None:
                y = y + _times(plain, rows)
            for each in turning:
                y = y + each.add(plain)
            if bias and self.bias is not None:
                y = y + self.bias.to(y.dtype)
        for each in counted:
            if not each.path.turns:
                y = y + each.add(x)
        return y

    def input_gradient(self, gradient: Tensor) -> Tensor:
        """The gradient of the input for one of the output."""
        counted = self._counted()
        rows, columns = _gain(counted, "output"), _gain(counted, "input")
        through = gradient
        if rows is not None:
            through = through + _times(gradient, rows)
        for each in counted:
            if each.path.turns:
                through = through + each.back(gradient)
        found = self._base_gradient(through)
        if columns is not None:
            found = found + _times(self._base_gradient(gradient), columns)
        for each in counted:
            if not each.path.turns:
                found = found + each.back(gradient)
        return found

    def _counted(self) -> list[Amendment]:
        every = (cast("Amendment", each) for each in self.amendments)
        return [each for each in every if self.counting == "all" or each.in_samples]


class AmendedQuantized(AmendedLinear, QuantizedLinear):
    """The same, of a weight that is kept in fewer bits."""

    def _base_product(self, x: Tensor, bias: bool) -> Tensor:
        return QuantizedLinear.product(self, x, bias=bias)

    def _base_gradient(self, gradient: Tensor) -> Tensor:
        return QuantizedLinear.input_gradient(self, gradient)

    def _base_dense(self, dtype: torch.dtype) -> Tensor:
        return self.stored_numbers(dtype)

    def _precision(self) -> torch.dtype:
        return self.precision

    def parts(self) -> dict[str, Tensor]:
        """The tensors that hold the base's weight, as they are now."""
        return QuantizedLinear.parts(self)


_CLASSES: Mapping[type, type[AmendedLinear]] = {
    nn.Linear: AmendedLinear,
    QuantizedLinear: AmendedQuantized,
}


def is_amendable(layer: nn.Module) -> bool:
    """Whether a layer can have amendments: a plain Linear of torch's, or one of our own formats."""
    return type(layer) in _CLASSES or isinstance(layer, AmendedLinear)


def is_rounded(layer: nn.Module) -> bool:
    """Whether a layer's weight is kept in fewer bits, which an adapter may repair."""
    return isinstance(layer, QuantizedLinear)


def amend(layer: nn.Module, amendments: Iterable[Amendment]) -> AmendedLinear:
    """Put amendments on a layer that `is_amendable`, in place, behind those that it has."""
    if not isinstance(layer, AmendedLinear):
        # The object stays the one that its block, and whoever swaps the block, knows.
        layer.__class__ = _CLASSES[type(layer)]
        layer.amendments = nn.ModuleList()
    amended = cast("AmendedLinear", layer)
    amended.amendments.extend(amendments)
    return amended


def _gain(amendments: Iterable[Amendment], axis: Axis) -> Tensor | None:
    found = [each.gain for each in amendments if each.axis == axis and each.gain is not None]
    return sum(found[1:], found[0]) if found else None


def _times(values: Tensor, vector: Tensor) -> Tensor:
    """A product with a vector of more bits, rounded once."""
    return (values * vector.to(values.device)).to(values.dtype)
