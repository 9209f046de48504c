"""A frozen Linear and its adapter as one autograd function.

The plain form, ``linear(x) + kind.apply(x)``, lets autograd keep every intermediate result and
writes the sums into new tensors. Here a kind adds its contribution straight into the output and,
in the backward pass, straight into the input's gradient; of the forward pass only the input and
little else is saved for backward. The plain form stays the reference, and serves bases whose weight
cannot be read as a matrix.

The frozen weight comes from one of three:

- A plain weight: the base's own product. It is saved for backward, which costs nothing and sees
  when somebody changes it.
- A quantized layer: its own forward, so that its bits are those of the base without an adapter. In
  the backward pass the weight is read as numbers once more: some libraries' own backward keeps the
  whole weight from the forward pass on, as large as if it had never been quantized.
- An augmented weight (`AugmentedWeight`): base and adapter in one product, which is rounded once.
"""

from __future__ import annotations

from typing import Any, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ...errors import AdapterError
from ...quantization.frozen_linear import FrozenLinear
from ..base.dense_weight import StorageMark, dense_weight
from .adapter_kernel import (
    AdapterKernel,
    LowRankPath,
    Operands,
    WholeDelta,
    add_below,
    differentiable_once,
    direct_apply,
)
from .gradient_accumulator import RankSlice


def make_fused_function(kernel: AdapterKernel) -> type[torch.autograd.Function]:
    """Make the function of a kind.

    Args:
        kernel: How the kind adds itself.

    Returns:
        A class whose ``apply``, or ``direct`` where nothing compiles, takes

        - x: `[..., in]`; it gets no gradient where there is a share.
        - link: Where the gradient of a shared input goes (`gradient_accumulator`), or None.
        - weight, bias: A plain weight `[out, in]` in the dtype of x, and `[out]` or None. They get
          no gradient.
        - scale: Multiplies the contribution.
        - layer: A quantized layer (`quantized_weight.is_read_back`), which is called in place of a
          product with the weight; None.
        - augmented: Weight and free columns `[out, in + columns]`, or None.
        - share: What the layer has of a shared input, or None.
        - hidden: The layer's columns of the product that those on a shared input make, or None.
        - operands: Of the factors; they may have a wider dtype than x.

        and gives ``[..., out]``.
    """

    class AdaptedLinear(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, *inputs: Any) -> Tensor:
            return _forward(kernel, ctx, *inputs)

        @staticmethod
        @differentiable_once
        def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:  # type: ignore[override]
            return _backward(kernel, ctx, gradients[0])

    AdaptedLinear.direct = staticmethod(direct_apply(AdaptedLinear))  # type: ignore[attr-defined]
    return AdaptedLinear


def _forward(
    kernel: AdapterKernel,
    ctx: Any,
    x: Tensor,
    link: Tensor | None,
    weight: Tensor,
    bias: Tensor | None,
    scale: float,
    layer: nn.Module | None,
    augmented: Tensor | None,
    share: RankSlice | None,
    hidden: Tensor | None,
    *operands: Tensor,
) -> Tensor:
    del link
    rows = parts = x.reshape(-1, x.shape[-1]).contiguous()
    # The base's own call, so that its bits are those of the base without an adapter; torch computes
    # the same two axes for three that lie in a line.
    flat = 1 < x.dim() < 4 and x.is_contiguous()
    path, upper, kept = kernel.path, (), ()
    takes_path = hidden is not None or augmented is not None or kernel.takes_path(operands)
    if takes_path:
        if path.shaped is not None:
            operands = path.shaped(operands)
        upper = path.upper(operands, scale, x.dtype)
        if path.keeps_hidden:
            if hidden is None:
                hidden = rows @ path.down(operands, x.dtype, True)
            kept = (hidden,)
        else:
            down = path.down(operands, x.dtype)
            kept = (down, *upper)
            if down.shape[1] != rows.shape[1]:
                parts = rows.view(-1, down.shape[1])
            if hidden is None:
                hidden = down @ parts.t()
    if augmented is not None and hidden is not None:
        y = augmented_product(rows, augmented, bias, *kernel.augment(hidden, operands, scale))
    else:
        y = F.linear(rows if flat else x, weight, bias) if layer is None else _output(layer, x)
        y = y if y.dim() == 2 else y.view(-1, y.shape[-1])
        if hidden is not None:
            path.add_up(hidden, y, upper)
        else:
            cast("WholeDelta", kernel.whole).add_output(rows, y, operands, scale)
    # As backward takes it, where that is the same memory.
    ctx.save_for_backward(parts if x.is_contiguous() else x, weight, *operands, *kept)
    ctx.known = scale, layer, share, len(operands), takes_path, x.shape
    # Of a batch this is a view of a matrix that nobody else has, and autograd forbids to change a
    # view that a function of one's own returns.
    return y.view(*x.shape[:-1], y.shape[-1]).data


def _output(layer: nn.Module, x: Tensor) -> Tensor:
    """What a quantized layer gives; nobody watches it, so that its product is all of its call."""
    y = layer.product(x) if isinstance(layer, FrozenLinear) else layer(x)
    return y.contiguous()


def _backward(kernel: AdapterKernel, ctx: Any, g: Tensor) -> tuple[Tensor | None, ...]:
    scale, layer, share, count, takes_path, shape = ctx.known
    x, weight, *others = ctx.saved_tensors
    operands, kept = tuple(others[:count]), others[count:]
    g = g.reshape(-1, g.shape[-1]).contiguous()
    if x.dim() != 2 or not x.is_contiguous():
        x = x.reshape(-1, shape[-1]).contiguous()
    x_gradient = link_gradient = None
    if share is not None:
        share.accumulator.begin()
        # Empty as it is, it tells the entry whether gradients of gradients are asked for.
        link_gradient = g.new_empty(0)
    if ctx.needs_input_grad[0] if share is None else share.accumulator.wants_input:
        # A weight's memory may have been away since the forward pass, to make room.
        if layer is not None:
            x_gradient = _quantized_gradient(layer, g)
        else:
            now = weight.to(g.device, g.dtype)
            x_gradient = g @ now if share is None else share.accumulator.add_input(g, now)
    if takes_path:
        found = _path_gradients(
            kernel.path,
            g,
            x,
            x_gradient=x_gradient,
            operands=operands,
            kept=kept,
            scale=scale,
            share=share,
        )
    else:
        found = cast("WholeDelta", kernel.whole).add_gradients(g, x, x_gradient, operands, scale)
    own = None if x_gradient is None or share is not None else x_gradient.view(shape)
    return (own, link_gradient, None, None, None, None, None, None, None, *found)


def _path_gradients(
    path: LowRankPath,
    g: Tensor,
    x: Tensor,
    x_gradient: Tensor | None,
    operands: Operands,
    kept: list[Tensor],
    scale: float,
    share: RankSlice | None,
) -> list[Tensor | None]:
    """The operands' gradients; those of the input, and below a shared input, are added."""
    upper: Operands = ()
    if path.keeps_hidden:
        (hidden,) = kept
        down = None if path.leaves_down else path.down(operands, g.dtype)
    else:
        down, upper = kept[0], tuple(kept[1:])
        if x.shape[1] != down.shape[1]:
            x = x.view(-1, down.shape[1])
        hidden = down @ x.t()
    of_hidden, found = path.up_gradients(g, hidden, upper, operands, scale)
    if share is not None and share.shares_path:
        share.accumulator.add_path(share, x, of_hidden, down=down, operands=operands)
        return found
    turned = of_hidden.t()
    if not path.keeps_hidden:
        of_hidden, turned = turned, of_hidden
    of_down = turned @ x
    lower = path.down_gradients(of_down, operands)
    if x_gradient is not None:
        add_below(x_gradient, of_hidden, of_down if down is None else down)
    for at, gradient in zip(path.lower, lower, strict=True):
        found[at] = gradient
    return found


def _quantized_gradient(layer: nn.Module, g: Tensor) -> Tensor:
    """A quantized layer's gradient of the input: its own product, or one with its numbers."""
    if isinstance(layer, FrozenLinear) and (layer.fetches or layer.weight.device == g.device):
        return layer.input_gradient(g)
    dense = dense_weight(layer, g.dtype)
    if dense.is_meta and not g.is_meta:
        raise AdapterError(
            f"a {type(layer).__name__} of {tuple(dense.shape)} whose weight has no values (meta "
            "device) in the backward pass",
            "the base's weights in memory in the backward pass as in the forward pass",
            "Bring them back before the backward pass.",
        )
    return g @ dense.to(g)


class AugmentedWeight:
    """The memory that a weight was moved into; it lives as long as the weight lies there."""

    def __init__(self) -> None:
        self._mark: StorageMark | None = None

    def around(self, weight: Tensor, columns: int) -> Tensor:
        """Weight `[out, in]` and free columns as one matrix `[out, in + columns]`.

        Moves the dense weight, which is then held once. A weight that was moved away meanwhile (to
        another device or dtype, or replaced) gets a new place.
        """
        width = weight.shape[1] + columns
        if not self._holds(weight) or weight.stride() != (width, 1):
            with torch.inference_mode(False), torch.no_grad():
                augmented = augment(weight, columns)
                weight.data = augmented[:, : weight.shape[1]]
                self._mark = StorageMark.of(augmented)
        return weight.data.as_strided((weight.shape[0], width), (width, 1))

    def release(self, weight: Tensor) -> None:
        """Give the weight a place of its own again."""
        if self._holds(weight):
            weight.data = weight.data.contiguous()
        self._mark = None

    def _holds(self, weight: Tensor) -> bool:
        return self._mark is not None and self._mark == StorageMark.of(weight)


def augment(weight: Tensor, columns: int) -> Tensor:
    """Copy a weight `[out, in]` into a matrix `[out, in + columns]`, for one product of both.

    The free columns at its right are zero.
    """
    augmented = weight.new_zeros(weight.shape[0], weight.shape[1] + columns)
    augmented[:, : weight.shape[1]] = weight
    return augmented


def augmented_product(
    rows: Tensor, augmented: Tensor, bias: Tensor | None, hidden: Tensor, up: Tensor
) -> Tensor:
    """``[x | hidden] @ [W | up].T + bias``, whose sums are rounded once."""
    inputs = rows.shape[1]
    # What is saved for backward is the weight's own columns, which stay as they are; `data`
    # keeps autograd from taking the new values of the free columns for a change of those.
    augmented.data[:, inputs:] = up
    return F.linear(torch.cat([rows, hidden], dim=1), augmented, bias)
