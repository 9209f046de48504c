"""Compare what two sets of factors change about a layer, without building the change.

A change ``[out, in]`` is multiplied by a few fixed random vectors. Two changes that differ give
different products, but for a chance of nought.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping

import torch
from torch import Tensor

from ...adapters.dora import DORA_SCALE
from ...adapters.kernels.convolution import as_matrices
from ...adapters.kinds.registry import KINDS

_PROBES = 4
_SEED = 20
_ODD = 1.37
"""A number with which nothing that is rounded already stays so."""

_TIMES_ROUNDING = 3.0
"""How much more than our own factors' rounding is still taken for rounding."""


@functools.lru_cache(maxsize=16)
def probes(columns: int, dtype: torch.dtype = torch.float64) -> Tensor:
    """The vectors `[4, columns]` for layers with so many inputs."""
    generator = torch.Generator().manual_seed(_SEED)
    drawn = torch.randn(_PROBES, columns, generator=generator, dtype=torch.float64)
    return drawn.to(dtype)


def change_of(x: Tensor, kind: str, tensors: Mapping[str, Tensor], scale: float) -> Tensor:
    """Multiply vectors by the change that factors make.

    Args:
        x: `[n, in]`, of a convolution `[n, in * window]`.
        kind: ``lora``, ``loha`` or ``lokr``.
        tensors: The factors; DoRA's lengths are passed over.
        scale: What multiplies their product.

    Returns:
        `[n, out]` in the number format of x.
    """
    wide = {name: each.to(x.dtype) for name, each in tensors.items() if name != DORA_SCALE}
    factors = as_matrices(wide)
    if kind == "loha":
        # Row i of the change times x is the sum over r and s of a1[i, r] m[r, s] a2[i, s].
        first, second = factors["hada_w1_b"], factors["hada_w2_b"]
        middle = (first * x.unsqueeze(1)) @ second.T
        return scale * ((factors["hada_w1_a"] @ middle) * factors["hada_w2_a"]).sum(dim=-1)
    return KINDS[kind].apply(x, factors, scale)


def swap_halves(products: Tensor) -> Tensor:
    """Exchange the halves of a layer's outputs `[n, out]`."""
    return torch.cat(list(reversed(products.chunk(2, dim=1))), dim=1)


def relative(value: Tensor, reference: Tensor) -> float:
    """``||value - reference|| / ||reference||``; 0 when both are zero."""
    distance = float(torch.linalg.vector_norm(value - reference))
    size = float(torch.linalg.vector_norm(reference))
    if size:
        return distance / size
    return 0.0 if distance == 0.0 else float("inf")


def rounding_of(
    x: Tensor, kind: str, tensors: Mapping[str, Tensor], dtype: torch.dtype, scale: float
) -> float:
    """How far a change may be off because of how its factors are rounded to a number format.

    Args:
        x: As for `change_of`.
        kind: ``lora``, ``loha`` or ``lokr``.
        tensors: The factors before they are stored.
        dtype: The number format that they are stored in.
        scale: What multiplies their product.

    Returns:
        A few times what rounding changes, relative: of a small layer the few factors may all be
        rounded luckily. Above `MOST_ROUNDING` the format does not hold the factors.
    """
    # Multiplied, because a layout may multiply a factor before it is stored: what was read from a
    # file of the same format is rounded already, and would not be rounded again as it is.
    rounded = {
        name: (tensor.to(x.dtype) * _ODD).to(dtype).to(x.dtype) / _ODD
        for name, tensor in tensors.items()
    }
    exact = change_of(x, kind, tensors, scale)
    return _TIMES_ROUNDING * relative(change_of(x, kind, rounded, scale), exact)
