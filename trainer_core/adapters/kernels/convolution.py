"""Convolutions: an adapter on one is an adapter on a Linear that reads the window as one input.

A convolution's weight ``[out, in, *kernel]`` is the matrix ``[out, in * window]``, where window is
the number of places in the kernel. The kinds' equations are therefore those of a matrix; what is
of its own here is how such a matrix slides over an input, and the Tucker core, which stands for
the window in factors that do not have it.

Source: LyCORIS 4.1.3, whose factors and Tucker forms these are (Yeh et al. 2023, arXiv:2309.14859).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ...quantization.frozen_convolution import FrozenConvolution
from .adapter_kernel import Factors

CONVOLUTIONS = (nn.Conv1d, nn.Conv2d, nn.Conv3d)

CORES: Mapping[str, tuple[str, str]] = {
    "lora_mid": ("lora_up", "lora_down"),
    "hada_t1": ("hada_w1_a", "hada_w1_b"),
    "hada_t2": ("hada_w2_a", "hada_w2_b"),
    "lokr_t2": ("lokr_w2_a", "lokr_w2_b"),
}
"""Tucker core ``[r, r, *kernel]`` to the factors on its two sides, outputs first."""

_OPERATIONS = (F.conv1d, F.conv2d, F.conv3d)


@dataclass(frozen=True, slots=True)
class Window:
    """How a convolution walks over its input.

    Attributes:
        kernel: The window's size along each spatial axis.
        stride: Steps along each axis.
        padding: What the convolution itself adds at the borders.
        dilation: Distance of the window's places along each axis.
        groups: Groups of channels that do not see each other.
        border: What is added before the convolution instead, as `torch.nn.functional.pad` wants
            it, and its mode; None for zeros, which the convolution adds.
    """

    kernel: tuple[int, ...]
    stride: tuple[int, ...]
    padding: Any
    dilation: tuple[int, ...]
    groups: int
    border: tuple[tuple[int, ...], str] | None

    @classmethod
    def of(cls, layer: nn.Module) -> Window:
        """Read it off a Conv1d, Conv2d or Conv3d."""
        conv = cast("nn.Conv2d", layer)
        padding, border = cast("Any", conv.padding), None
        if conv.padding_mode != "zeros":
            border = (tuple(conv._reversed_padding_repeated_twice), conv.padding_mode)
            padding = (0,) * len(conv.kernel_size)
        return cls(
            tuple(conv.kernel_size),
            tuple(conv.stride),
            padding,
            dilation=tuple(conv.dilation),
            groups=conv.groups,
            border=border,
        )

    def convolve(self, x: Tensor, weight: Tensor) -> Tensor:
        """The convolution of `[B, groups * in, ...]` with a weight `[out, in * window]`."""
        return self._walk(x, weight, self.groups)

    def slide(self, x: Tensor, matrix: Tensor) -> Tensor:
        """Apply one small convolution `[rows, m * window]` to each of n blocks of channels.

        Of `[B, n * m, ...]` it makes `[B, n, rows, ...]`.
        """
        width = matrix.shape[1] // math.prod(self.kernel)
        count = x.shape[1] // width
        blocks = x.reshape(x.shape[0] * count, width, *x.shape[2:])
        return self._walk(blocks, matrix, 1).unflatten(0, (x.shape[0], count))

    def combine(self, hidden: Tensor, matrix: Tensor, groups: int = 1) -> Tensor:
        """Mix channels at each place: ``[B, groups * r, ...]`` by ``[out, r]``."""
        operation = _OPERATIONS[len(self.kernel) - 1]
        return operation(hidden, matrix.reshape(*matrix.shape, *self._ones), groups=groups)

    @property
    def _ones(self) -> tuple[int, ...]:
        return (1,) * len(self.kernel)

    def _walk(self, x: Tensor, matrix: Tensor, groups: int) -> Tensor:
        if self.border is not None:
            x = F.pad(x, self.border[0], mode=self.border[1])
        weight = matrix.reshape(matrix.shape[0], -1, *self.kernel)
        operation = _OPERATIONS[len(self.kernel) - 1]
        return operation(
            x,
            weight,
            stride=self.stride,
            padding=self.padding,
            dilation=self.dilation,
            groups=groups,
        )


def as_matrices(factors: Factors) -> dict[str, Tensor]:
    """Write a layer's factors, as they are trained and filed, as those of ``[out, in * window]``.

    Those of a Linear stay the same. The result has no window and no Tucker core: that is multiplied
    into the factor on its inputs' side, which then has the shape that it has without Tucker.
    """
    matrices = {name: factor.flatten(1) for name, factor in factors.items()}
    for name, (upper, lower) in CORES.items():
        if name not in factors:
            continue
        del matrices[name]
        core = torch.einsum("ij...,jn->in...", factors[name], matrices[lower])
        matrices[lower] = core.flatten(1)
        if name != "lora_mid":
            # LoHa and LoKr keep the outputs' factor lying beside a core.
            matrices[upper] = matrices[upper].t()
    return matrices


def filed_shape(shape: tuple[int, ...]) -> tuple[int, ...]:
    """The shape in which ComfyUI reads a factor's window: with two axes, whatever the layer has.

    ``(rows, columns, *kernel)`` with none or two axes stays, else ``(rows, columns, window, 1)``.
    """
    rows, columns, *kernel = shape
    return shape if len(kernel) in (0, 2) else (rows, columns, math.prod(kernel), 1)


def reshaped_factors(tensors: Factors, shapes: Mapping[str, tuple[int, ...]]) -> dict[str, Tensor]:
    """Give factors from a file the shapes that a layer's factors have, by their names.

    Files write a window flat or with two axes, and a Linear's factors as those of a convolution
    that sees one place. A factor of any other shape stays as it is.
    """
    return {
        name: tensor.reshape(shapes[name])
        if name in shapes and _is_same(tuple(tensor.shape), shapes[name])
        else tensor
        for name, tensor in tensors.items()
    }


def _is_same(found: tuple[int, ...], wanted: tuple[int, ...]) -> bool:
    rows, columns, *kernel = wanted
    if found in (filed_shape(wanted), (rows, columns * math.prod(kernel))):
        return True
    return math.prod(kernel) == 1 and found[:2] == wanted[:2] and math.prod(found[2:]) == 1


def layer_sizes(layer: nn.Module) -> tuple[int, int, tuple[int, ...]]:
    """Inputs that an output sees, outputs, kernel (a Linear has none); else `TypeError`."""
    if isinstance(layer, nn.Linear):
        return layer.in_features, layer.out_features, ()
    if isinstance(layer, CONVOLUTIONS):
        kernel = cast("tuple[int, ...]", layer.kernel_size)
        return layer.in_channels // layer.groups, layer.out_channels, tuple(kernel)
    raise TypeError(f"{type(layer).__name__} is neither a Linear nor a convolution")


def is_plain_convolution(layer: nn.Module) -> bool:
    """Whether a layer computes what its class in torch does, and nothing around it."""
    if isinstance(layer, (nn.Linear, FrozenConvolution)):
        return True
    for known in CONVOLUTIONS:
        if isinstance(layer, known):
            own = type(layer)
            return own.forward is known.forward and own._conv_forward is known._conv_forward
    return False
