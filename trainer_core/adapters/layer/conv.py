"""`ConvFactorLayer`: what is otherwise with a frozen convolution than with a frozen Linear."""

from __future__ import annotations

from typing import cast

from torch import Tensor, nn

from ..kernels.adapter_kernel import Factors
from ..kernels.convolution import Window, as_matrices
from ..kinds.kind import LayerPlan
from .factor_layer import FactorLayer


class ConvFactorLayer(FactorLayer):
    """A frozen convolution plus the adapter's contribution.

    It is always computed in the plain form: no factor has the size of the weight, and none of the
    fused function's savings reach a convolution, whose own backward pass keeps its input anyway.
    """

    window: Window

    def install(self, plan: LayerPlan, seed: int) -> None:
        """Create and initialize this layer's factors."""
        self.window = Window.of(self.get_base_layer())
        super().install(plan, seed)

    @property
    def weight_shape(self) -> tuple[int, ...]:
        """Shape of the weight: ``(out, in / groups, *kernel)``."""
        conv = cast("nn.Conv2d", self.get_base_layer())
        return conv.out_channels, conv.in_channels // conv.groups, *conv.kernel_size

    def _apply_kind(self, x: Tensor, factors: Factors, scale: float) -> Tensor:
        if x.dim() == len(self.window.kernel) + 1:
            return self._apply_kind(x.unsqueeze(0), factors, scale).squeeze(0)
        return self.kind.convolve(self.window, x, as_matrices(factors), scale)

    def _per_input(self, values: Tensor) -> Tensor:
        """Every group has the weight's inputs once."""
        return self._per_output(values.repeat(self.window.groups))

    def _per_output(self, values: Tensor) -> Tensor:
        """Channels stand before the axes that the window walks over."""
        return values.view(-1, *[1] * len(self.window.kernel))
