"""LoKr in files: a Kronecker product, of which either factor may be a product itself."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Any

import torch
from torch import Tensor

from ...errors import AdapterError
from ...tensors.randomized_svd import closest_of_rank
from ...types import LayerState
from ..kernels.convolution import as_matrices
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
    scaled_factor,
)
from .kind import LayerPlan
from .lokr import LOKR, factor_sizes, factorize
from .lora import APPROXIMATE
from .low_rank_algebra import (
    Spectrum,
    blocks_as_rows,
    fit_product,
    kronecker_spectrum,
    nearest_kronecker,
    pair_of,
    relative_error,
    spectrum_of_product,
    split_kronecker,
)

_FACTORS = ("lokr_w1", "lokr_w2", "lokr_w1_a", "lokr_w1_b", "lokr_w2_a", "lokr_w2_b", "lokr_t2")
_MARKS = (".lokr_w1", ".lokr_w2", ".lokr_w1_a", ".lokr_w2_a")


class LokrFiles(FileRules):
    """Source: the writers and readers of ComfyUI 0.33, Diffusers 0.42, PEFT 0.21, LyCORIS 4.1.3."""

    name, title, mark = "lokr", "LoKr", "lokr"
    pairs = (
        FactorPair("lokr_w1_a", "lokr_w1_b", whole="lokr_w1"),
        FactorPair("lokr_w2_a", "lokr_w2_b", "lokr_t2", whole="lokr_w2"),
    )
    spellings = (
        *((f".{each}", each, "lokr") for each in _FACTORS),
        *((f".{each}.default", each, "lokr.default") for each in _FACTORS),
    )
    other_methods = ((r"\.lokr_t1$", "a LoKr core that no reader knows"),)
    rank_factors = ("lokr_w2_b", "lokr_w1_b")
    window_factors = ("lokr_t2", "lokr_w2")
    flat_factors = frozenset(_FACTORS) - {"lokr_w2", "lokr_t2"}
    filed_planes = ("lokr_w2",)
    scaled_factors = ("lokr_w2_b", "lokr_w2")
    stacks = False
    product_is_exact = False
    splits = True
    comfyui_endings = tuple(f".{each}" for each in _FACTORS)
    diffusers_kind = "lokr"

    def sizes(self, tensors: Tensors) -> tuple[int, int]:
        (rows, columns), (inner_rows, inner_columns) = self.pair_sizes(tensors)
        return rows * inner_rows, columns * inner_columns

    def row_factors(self, tensors: Tensors) -> tuple[tuple[str, int], ...]:
        # A block of rows of the delta is one row of the first factor, times the whole second one.
        return super().row_factors(tensors)[:1]

    def block_rows(self, tensors: Tensors) -> int:
        if "lokr_w2" in tensors:
            return tensors["lokr_w2"].shape[0]
        return tensors["lokr_w2_a"].shape[1 if "lokr_t2" in tensors else 0]

    def product(self, matrices: Tensors, scale: float) -> tuple[Tensor, Tensor]:
        first, second = (_pair(matrices, pair) for pair in self.pairs)
        return torch.kron(first[0] * scale, second[0]), torch.kron(first[1], second[1])

    def full_rank(self, tensors: Tensors) -> int:
        ranks = (
            min(tensors[pair.whole].shape)
            if pair.whole in tensors
            else min(*tensors[pair.up].shape, *tensors[pair.down].shape)
            for pair in self.pairs
        )
        return min(math.prod(ranks), *self.sizes(tensors))

    def spectrum(self, matrices: Tensors, kept: int) -> Spectrum:
        first, second = (_pair_spectrum(matrices, pair) for pair in self.pairs)
        return kronecker_spectrum(first, second, kept)

    def rank_values(self, matrices: Tensors) -> Tensor:
        # The second factor loses as much of itself as the delta loses of the delta.
        return _pair_spectrum(matrices, self.pairs[1])[1]

    def fit(self, source: Tensors, fresh: Tensors) -> tuple[dict[str, Tensor], float]:
        sizes = self.pair_sizes(fresh)
        if self.pair_sizes(source) == sizes:
            first, second = (self._fit_pair(pair, source, fresh) for pair in self.pairs)
            # Both are cut by projections: what is left is the product of what each has left.
            lost = first[1], second[1] * math.sqrt(1.0 - first[1] ** 2)
            return {**first[0], **second[0]}, math.hypot(*lost)
        old = [_whole(source, pair) for pair in self.pairs]
        parts = split_kronecker(old[0], old[1], *sizes)
        fitted: dict[str, Tensor] = {}
        for pair, part in zip(self.pairs, parts, strict=True):
            fitted |= self._fit_pair(pair, {pair.whole: part}, fresh)[0]
        return fitted, relative_error(LOKR.delta(fitted, 1.0), torch.kron(*old))

    def _fit_pair(
        self, pair: FactorPair, source: Tensors, fresh: Tensors
    ) -> tuple[dict[str, Tensor], float]:
        """Bring one of the two factors from whole or low-rank to whole or low-rank."""
        if pair.whole in fresh:
            return {pair.whole: _whole(source, pair)}, 0.0
        new_up, new_down = fresh[pair.up], fresh[pair.down]
        if pair == self.pairs[0]:
            # Both parts of the first factor start at random; a new part must add nothing.
            new_up = torch.zeros_like(new_up)
        if pair.whole in source:
            spectrum = torch.linalg.svd(source[pair.whole], full_matrices=False)
            up, down, error = pair_of(spectrum, new_up, new_down)
        else:
            up, down, error = fit_product(source[pair.up], source[pair.down], new_up, new_down)
        return {pair.up: up, pair.down: down}, error

    def resized_shapes(
        self, layer: LayerState, rank: int, factor: int | None
    ) -> tuple[int, dict[str, Shape]]:
        factors = as_matrices(layer.tensors)
        first, second = self.pair_sizes(factors)
        window = self.window(layer)
        # The window belongs to the inputs of the second factor.
        second = second[0], second[1] // math.prod(window)
        if factor is not None:
            outputs, inputs = (factorize(a * b, factor) for a, b in zip(first, second, strict=True))
            first, second = (outputs[0], inputs[0]), (outputs[1], inputs[1])
        shapes: dict[str, Shape] = {"lokr_w1": first}
        if "lokr_w1_a" in factors and factor is None:
            first_rank = min(rank, *first, factors["lokr_w1_a"].shape[1])
            shapes = {"lokr_w1_a": (first[0], first_rank), "lokr_w1_b": (first_rank, first[1])}
        if rank >= max(second) / 2:
            return rank, shapes | {"lokr_w2": (*second, *window)}
        columns = second[1] * math.prod(window)
        return rank, shapes | {"lokr_w2_a": (second[0], rank), "lokr_w2_b": (rank, columns)}

    def extract(self, plan: LayerPlan, matrix: Tensor) -> LayerState:
        (out_first, out_second), (in_first, in_second) = factor_sizes(plan)
        second = out_second, in_second * math.prod(plan.kernel)
        u, s, vh = closest_of_rank(blocks_as_rows(matrix, (out_first, in_first), second), 1)
        root = s[0].sqrt()
        whole = {
            "lokr_w1": (u[:, 0] * root).reshape(out_first, in_first),
            "lokr_w2": (vh[0] * root).reshape(out_second, in_second, *plan.kernel),
        }
        return LayerState(whole, float(plan.rank), plan.rank, plan.kernel)

    def stack(self, rows: Iterable[int], matrix: Tensor) -> tuple[dict[str, Tensor], float]:
        # Both factors whole, split as evenly as the sizes allow, with whole blocks for each layer.
        out_second = _even_divisor(math.gcd(*rows), matrix.shape[0])
        in_first, in_second = factorize(matrix.shape[1], -1)
        first, second = (matrix.shape[0] // out_second, in_first), (out_second, in_second)
        if matrix.is_meta:
            return {"lokr_w1": matrix.new_empty(first), "lokr_w2": matrix.new_empty(second)}, 0.0
        one, other, error = nearest_kronecker(matrix, first, second)
        return {"lokr_w1": one.float(), "lokr_w2": other.float()}, error

    def diffusers(self, tensors: Tensors, scale: float) -> dict[str, Tensor]:
        first = self.row_factors(tensors)[0][0]
        return {**tensors, first: scaled_factor(tensors[first], scale)}

    def diffusers_problem(self, layers: Mapping[str, LayerState]) -> tuple[str, str, str] | None:
        # Diffusers rebuilds every layer's factorisation from one number; see whether one exists.
        if self._peft_factor(layers) is not None:
            return None
        return (
            f"the {len(layers)} layers of this LoKr are split in ways that Diffusers' reader, "
            "which knows one factor for all, cannot follow",
            "a factor that suits every adapted layer",
            "Export with layout 'comfyui', or train with adapter.factor = -1, or with kind 'lora'. "
            f"{APPROXIMATE}.",
        )

    def peft_ranks(self, layers: Mapping[str, LayerState]) -> dict[str, int]:
        both = _splits_first(layers)
        sizes = {name: self.pair_sizes(layer.tensors) for name, layer in layers.items()}
        ranks = {n: _peft_rank(sizes[n], layers[n].tensors, both=both) for n in layers}
        wrong = next((name for name, rank in ranks.items() if rank is None), None)
        if self._peft_factor(layers) is None or wrong is not None:
            raise AdapterError(
                "a LoKr whose factors PEFT would give other shapes "
                f"({wrong or 'all layers together'})",
                "one factor for all layers, and a low-rank form that follows from the rank alone",
                "Export with layout 'comfyui', or train with adapter.factor = -1 and without "
                f"full_matrix. {APPROXIMATE}.",
            )
        return {name: rank for name, rank in ranks.items() if rank is not None}

    def peft_options(self, layers: Mapping[str, LayerState]) -> dict[str, Any]:
        return {
            "decompose_both": _splits_first(layers),
            "decompose_factor": self._peft_factor(layers),
        }

    def _peft_factor(self, layers: Mapping[str, LayerState]) -> int | None:
        """The one number by which PEFT splits every layer as it is split; None without one."""
        from peft.tuners.lokr.layer import factorization

        splits = [
            tuple(zip(*self.pair_sizes(layer.tensors), strict=True)) for layer in layers.values()
        ]
        for candidate in (-1, *sorted({outputs[0] for outputs, _ in splits})):
            if all(
                factorization(math.prod(sizes), candidate) == sizes
                for pair in splits
                for sizes in pair
            ):
                return candidate
        return None

    def comfyui_factors(self, tensors: Tensors) -> dict[str, Tensor]:
        readable = super().comfyui_factors(tensors)
        if "lokr_t2" in tensors:
            # ComfyUI 0.33 hands the product of core and factors to torch.kron, which refuses its
            # strides. The same LoKr without a core is read.
            matrices = as_matrices(tensors)
            del readable["lokr_t2"]
            readable |= {n: matrices[n].contiguous() for n in ("lokr_w2_a", "lokr_w2_b")}
        return readable

    def comfyui_slots(self, found: Mapping[str, str]) -> dict[str, str]:
        there = any(mark in found for mark in _MARKS)
        return {name: f".{name}" for name in _FACTORS} if there else {}

    def comfyui_fault(self, shapes: Mapping[str, Shape]) -> Fault | None:
        for pair in self.pairs:
            if pair.whole in shapes:
                continue
            up, down = shapes.get(pair.up), shapes.get(pair.down)
            if up is None or down is None:
                reason = f"{STOPS}: there is no {pair.whole}, and not both of its parts"
                return Fault("read wrongly", reason)
            if pair.core in shapes:
                # The product of core and factors has strides that torch.kron refuses.
                stops = len(shapes[pair.core]) != PLANE
                return Fault("read wrongly", f"a LoKr with a core: {STOPS if stops else SKIPS}")
            if len(up) != 2 or len(down) != 2:
                return Fault("read wrongly", f"{STOPS}: {pair.up} and _b are not matrices")
            if up[1] != down[0]:
                return different_ranks(up, down, STOPS)
        first, second = (len(shapes.get(pair.whole, (0, 0))) for pair in self.pairs)
        if second not in (2, PLANE) or first != 2:
            reason = "ComfyUI takes the window of lokr_w2 for something else unless it has two axes"
            return Fault("read wrongly", reason)
        return None

    def comfyui_sizes(self, shapes: Mapping[str, Shape]) -> Shape:
        first, second = (
            shapes.get(pair.whole) or (shapes[pair.up][0], shapes[pair.down][1])
            for pair in self.pairs
        )
        return first[0] * second[0], first[1] * math.prod(second[1:])

    def kohya_arguments(self, options: Mapping[str, Any]) -> dict[str, str]:
        arguments = {
            "factor": str(options.get("factor", -1)),
            "full_matrix": str(options.get("full_matrix", False)),
            "decompose_both": str(options.get("decompose_both", False)),
        }
        if options.get("unbalanced"):
            arguments["unbalanced_factorization"] = "True"
        return arguments


def _splits_first(layers: Mapping[str, LayerState]) -> bool:
    return any("lokr_w1_a" in layer.tensors for layer in layers.values())


def _peft_rank(sizes: tuple[tuple[int, int], ...], tensors: Tensors, *, both: bool) -> int | None:
    """The rank for which PEFT's rules give a layer the factors that it has; None without one."""
    bound_first, bound_second = (max(each) / 2 for each in sizes)
    ranks = {tensors[name].shape[0] for name in ("lokr_w1_b", "lokr_w2_b") if name in tensors}
    if not ranks:
        ranks = {max(1, math.ceil(bound_second), math.ceil(bound_first) if both else 1)}
    rank = ranks.pop()
    first_whole, second_whole = not (both and rank < bound_first), rank >= bound_second
    found = ("lokr_w1" in tensors, "lokr_w2" in tensors)
    return rank if not ranks and found == (first_whole, second_whole) else None


def _pair(matrices: Tensors, pair: FactorPair) -> tuple[Tensor, Tensor]:
    if pair.whole not in matrices:
        return matrices[pair.up], matrices[pair.down]
    whole = matrices[pair.whole]
    identity = torch.eye(min(whole.shape), dtype=whole.dtype)
    return (whole, identity) if whole.shape[1] <= whole.shape[0] else (identity, whole)


def _pair_spectrum(matrices: Tensors, pair: FactorPair) -> Spectrum:
    if pair.whole in matrices:
        return torch.linalg.svd(matrices[pair.whole], full_matrices=False)
    return spectrum_of_product(matrices[pair.up], matrices[pair.down])


def _whole(matrices: Tensors, pair: FactorPair) -> Tensor:
    return (
        matrices[pair.whole] if pair.whole in matrices else matrices[pair.up] @ matrices[pair.down]
    )


def _even_divisor(number: int, whole: int) -> int:
    """The divisor of a number that splits a multiple of it most evenly."""
    found = [each for each in range(1, math.isqrt(number) + 1) if number % each == 0]
    found += [number // each for each in found]
    return min(found, key=lambda each: each + whole // each)
