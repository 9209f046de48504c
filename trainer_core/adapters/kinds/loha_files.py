"""LoHa in files: two products, multiplied number by number."""

from __future__ import annotations

import math
from collections.abc import Mapping

import torch
from torch import Tensor

from ...errors import AdapterError
from ...types import LayerState
from .file_rules import (
    PLANE,
    SKIPS,
    STOPS,
    FactorPair,
    Fault,
    FileRules,
    Shape,
    Tensors,
    different_ranks,
    times,
)
from .loha import LOHA, khatri_rao, prefers_khatri_rao
from .lora_files import diffusers_product
from .low_rank import fit_product, product_norm, relative_error

_FACTORS = ("hada_w1_a", "hada_w1_b", "hada_w2_a", "hada_w2_b")
_CORES = ("hada_t1", "hada_t2")
_EXACT = 1e-6
"""Relative error up to which factors in float32 are the same adapter."""

_PART = 1 << 17
"""Numbers of a product that are in memory at once."""


class LohaFiles(FileRules):
    """Source: the writers and readers of ComfyUI 0.33, PEFT 0.21 and LyCORIS 4.1.3."""

    name, title, mark = "loha", "LoHa", "hada"
    pairs = (
        FactorPair("hada_w1_a", "hada_w1_b", "hada_t1"),
        FactorPair("hada_w2_a", "hada_w2_b", "hada_t2"),
    )
    spellings = (
        *((f".{each}", each, "hada") for each in (*_FACTORS, *_CORES)),
        *((f".{each}.default", each, "hada.default") for each in (*_FACTORS, *_CORES)),
    )
    rank_factors = ("hada_w1_b",)
    window_factors = ("hada_t1",)
    flat_factors = frozenset(_FACTORS)
    filed_planes = _CORES
    scaled_factors = ("hada_w2_a",)
    closest_is_known = False
    comfyui_endings = tuple(f".{each}" for each in (*_FACTORS, *_CORES))
    # Diffusers has no LoHa; it is written as the LoRA of rank r^2 that equals it exactly.
    diffusers_kind = "lora"

    def factor_sets(self) -> list[frozenset[str]]:
        return [frozenset(_FACTORS), frozenset((*_FACTORS, *_CORES))]

    def norm(self, matrices: Tensors) -> float:
        (rows, rank), columns = matrices["hada_w1_a"].shape, matrices["hada_w1_b"].shape[1]
        if prefers_khatri_rao(rank, rows, columns):
            return product_norm(*self.product(matrices, 1.0))
        squared, step = 0.0, max(1, _PART // columns)
        for start in range(0, rows, step):
            part = matrices["hada_w1_a"][start : start + step] @ matrices["hada_w1_b"]
            part *= matrices["hada_w2_a"][start : start + step] @ matrices["hada_w2_b"]
            squared += float(torch.linalg.vector_norm(part, dtype=torch.float64)) ** 2
        return math.sqrt(squared)

    def product(self, matrices: Tensors, scale: float) -> tuple[Tensor, Tensor]:
        down, up = khatri_rao(dict(matrices))
        return (up if scale == 1.0 else up * scale), down

    def fit(self, given: Tensors, fresh: Tensors) -> tuple[dict[str, Tensor], float]:
        fitted: dict[str, Tensor] = {}
        for pair in self.pairs:
            # A new part of both products has to be zero, and may start to move in one factor.
            new_up = torch.zeros_like(fresh[pair.up])
            up, down, _ = fit_product(given[pair.up], given[pair.down], new_up, fresh[pair.down])
            fitted |= {pair.up: up, pair.down: down}
        rank = max(given[pair.up].shape[1] for pair in self.pairs)
        wanted = fresh["hada_w1_a"].shape[1]
        if rank <= wanted:
            return fitted, 0.0
        error = relative_error(LOHA.delta(fitted, 1.0), LOHA.delta(dict(given), 1.0))
        if error > _EXACT:
            raise AdapterError(
                f"a loha of rank {rank} that loses {error:.1%} of its delta at rank {wanted}",
                f"a rank of at least {rank}: no method finds the closest loha of a smaller one",
                f"Set adapter.rank to {rank} or more.",
            )
        return fitted, error

    def resized_shapes(
        self, layer: LayerState, rank: int, factor: int | None
    ) -> tuple[int, dict[str, Shape]]:
        rows, columns = self.sizes(layer.tensors)
        return rank, {
            name: (rows, rank) if name.endswith("_a") else (rank, columns) for name in _FACTORS
        }

    def diffusers(self, tensors: Tensors, scale: float) -> dict[str, Tensor]:
        up, down = self.product(tensors, 1.0)
        return diffusers_product(times(up, scale), down)

    def comfyui_slots(self, found: Mapping[str, str]) -> dict[str, str]:
        if ".hada_w1_a" not in found:
            return {}
        names = (*_FACTORS, *_CORES) if ".hada_t1" in found else _FACTORS
        return {name: f".{name}" for name in names}

    def comfyui_fault(self, given: Mapping[str, Shape]) -> Fault | None:
        names = (*_FACTORS[1:], *(["hada_t2"] if "hada_t1" in given else []))
        missing = next((name for name in names if name not in given), None)
        if missing is not None:
            return Fault("read wrongly", f"{STOPS}: there is no {missing}")
        for pair in self.pairs:
            up, down, core = given[pair.up], given[pair.down], given.get(pair.core)
            if len(up) != 2 or len(down) != 2:
                return Fault("read wrongly", f"{STOPS}: {pair.up} and _b are no matrices")
            if core is None:
                if up[1] != down[0]:
                    return different_ranks(up, down, STOPS)
            elif len(core) != PLANE:
                return Fault("read wrongly", f"{STOPS}: it knows cores with two axes only")
            elif (core[0], core[1]) != (up[0], down[0]):
                return different_ranks(up, down, STOPS)
        if _half(given, self.pairs[0]) != _half(given, self.pairs[1]):
            return Fault("wrong shape", f"the two halves of the LoHa differ in size: {SKIPS}")
        return None

    def comfyui_sizes(self, given: Mapping[str, Shape]) -> Shape:
        rows, *columns = _half(given, self.pairs[0])
        return rows, math.prod(columns)

    @staticmethod
    def probe(x: Tensor, matrices: Tensors, scale: float) -> Tensor:
        """Row i of the delta times x is the sum over r and s of a1[i, r] m[r, s] a2[i, s]."""
        first, second = matrices["hada_w1_b"], matrices["hada_w2_b"]
        middle = (first * x.unsqueeze(1)) @ second.T
        return scale * ((matrices["hada_w1_a"] @ middle) * matrices["hada_w2_a"]).sum(dim=-1)


def _half(given: Mapping[str, Shape], pair: FactorPair) -> Shape:
    """Shape of one of the two products."""
    up, down, core = given[pair.up], given[pair.down], given.get(pair.core)
    return (up[0], down[1]) if core is None else (up[1], down[1], *core[2:])
