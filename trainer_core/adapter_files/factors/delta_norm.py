"""How large a layer's change is, from its factors: the change is not built.

Float32 tells it where the terms of a sum do not nearly cancel and stay inside its range; elsewhere
it is computed again in float64.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np
import torch
from torch import Tensor

from ...adapters.dora import DORA_SCALE
from ...adapters.kernels.convolution import as_matrices
from ...adapters.kinds.loha import khatri_rao, prefers_khatri_rao
from ...adapters.kinds.registry import layer_scale
from ...types import LayerState

_LEAST, _MOST = 1e-12, 1e12
"""Norms between which squares and their sums stay inside float32's range."""

_PLAIN = 1e-2
"""Share of its largest possible value above which a sum is free of cancellation."""

_PART = 1 << 17
"""Numbers of a product that are in memory at once."""


def delta_norm(kind: str, layer: LayerState) -> float:
    """The Frobenius norm of a layer's change, before DoRA.

    Args:
        kind: ``lora``, ``loha`` or ``lokr``.
        layer: The layer, in float32 or float64.

    Returns:
        The norm, to six digits or better.
    """
    given = {name: tensor for name, tensor in layer.tensors.items() if name != DORA_SCALE}
    norm = _norm(kind, as_matrices(given))
    if not _LEAST < norm < _MOST:
        wide = {name: tensor.double() for name, tensor in given.items()}
        norm = _norm(kind, as_matrices(wide))
    return abs(layer_scale(kind, layer)) * norm


def _norm(kind: str, factors: Mapping[str, Tensor]) -> float:
    if kind == "lora":
        return _product_norm(factors["lora_up"], factors["lora_down"])
    if kind == "loha":
        return _loha_norm(factors)
    # The norm of a Kronecker product is the product of the norms.
    return math.prod(_side_norm(factors, name) for name in ("lokr_w1", "lokr_w2"))


def _side_norm(factors: Mapping[str, Tensor], name: str) -> float:
    whole = factors.get(name)
    if whole is None:
        return _product_norm(factors[f"{name}_a"], factors[f"{name}_b"])
    return float(torch.linalg.vector_norm(whole, dtype=torch.float64))


def _loha_norm(factors: Mapping[str, Tensor]) -> float:
    (rows, rank), columns = factors["hada_w1_a"].shape, factors["hada_w1_b"].shape[1]
    if prefers_khatri_rao(rank, rows, columns):
        down, up = khatri_rao(dict(factors))
        return _product_norm(up, down)
    squared, step = 0.0, max(1, _PART // columns)
    for start in range(0, rows, step):
        part = factors["hada_w1_a"][start : start + step] @ factors["hada_w1_b"]
        part *= factors["hada_w2_a"][start : start + step] @ factors["hada_w2_b"]
        squared += float(torch.linalg.vector_norm(part, dtype=torch.float64)) ** 2
    return math.sqrt(squared)


def _product_norm(up: Tensor, down: Tensor) -> float:
    """Norm of ``up @ down``: its square is ``<up^T up, down down^T>``, which are rank x rank."""
    squared, most = _squared_norm(up, down)
    if not squared > _PLAIN * most:
        squared, _ = _squared_norm(up.double(), down.double())
    return math.sqrt(max(squared, 0.0))


def _squared_norm(up: Tensor, down: Tensor) -> tuple[float, float]:
    """The square of the norm, and the most that it could be for factors of these sizes."""
    first, second = _gram(up.T).double(), _gram(down).double()
    sizes = (float(torch.linalg.vector_norm(each)) for each in (first, second))
    return float((first * second).sum()), math.prod(sizes)


def _gram(rows: Tensor) -> Tensor:
    # NumPy knows that a matrix times its own transpose is symmetric, and computes half of it.
    values = rows.numpy()
    with np.errstate(over="ignore", invalid="ignore"):  # seen by who asked, who goes to float64
        return torch.from_numpy(values @ values.T)
