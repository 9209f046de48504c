"""LoHa: the delta is the elementwise product of two low-rank products."""

from __future__ import annotations

import math
from collections.abc import Mapping

import torch
import torch.nn.functional as F
from torch import Tensor

from ...errors import AdapterError
from ...types import LayerState
from ..dora_magnitude import Axis, low_rank_norm_terms
from ..kernels.adapter_kernel import (
    AdapterKernel,
    Factors,
    Gradients,
    LowRankPath,
    Operands,
    WholeDelta,
    cast_gradients,
)
from ..kernels.convolution import Window
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
from .kind import (
    MOVED,
    Initializer,
    Kind,
    LayerPlan,
    low_rank_distance,
    normal,
    ratio_scale,
    scaled,
    squared_product,
    uniform,
    uniform_by_inputs,
)
from .lora import diffusers_product
from .low_rank_algebra import fit_product, norm_of_product, product_norm, relative_error

_NAMES = ("hada_w1_a", "hada_w1_b", "hada_w2_a", "hada_w2_b")
_PART_SIZE = 1 << 20
"""Numbers of the delta that are made at once where it has to be built."""

_EXACT_RANK = 16
"""Rank up to which the form of rank r^2 is taken for its one rounding, though it costs more."""


def khatri_rao(factors: Factors) -> tuple[Tensor, Tensor]:
    """Write the delta of rank-r factors as one product of rank r^2.

    ``(A1 B1) * (A2 B2) = up @ down``, where row i of `up` is the outer product of row i of A1 and
    row i of A2, and column j of `down` that of column j of B1 and column j of B2. It is exact.
    ``hada_w1_a`` and ``hada_w2_a`` are `[out, r]`, ``hada_w1_b`` and ``hada_w2_b`` `[r, in]`;
    ``down`` is `[r*r, in]`, ``up`` `[out, r*r]`.
    """
    first_up, second_up = factors["hada_w1_a"], factors["hada_w2_a"]
    first_down, second_down = factors["hada_w1_b"], factors["hada_w2_b"]
    up = (first_up.unsqueeze(2) * second_up.unsqueeze(1)).flatten(1)
    down = (first_down.unsqueeze(1) * second_down.unsqueeze(0)).flatten(0, 1)
    return down, up


def prefers_khatri_rao(rank: int, outputs: int, inputs: int) -> bool:
    """Whether the rank-r^2 form costs less than building the delta.

    Its forward, input gradient and factor gradients cost 6 T r^2 (in + out) operations, those of
    the built delta's weight gradient 2 T in out (T tokens).
    """
    return 3 * rank * rank * (outputs + inputs) < outputs * inputs


def _shapes(plan: LayerPlan) -> dict[str, tuple[int, ...]]:
    if plan.tucker:
        core, up, down = (plan.rank, plan.rank, *plan.kernel), plan.outputs, plan.inputs
        shapes: dict[str, tuple[int, ...]] = {}
        for index in ("1", "2"):
            shapes |= {
                f"hada_t{index}": core,
                f"hada_w{index}_a": (plan.rank, up),
                f"hada_w{index}_b": (plan.rank, down),
            }
        return shapes
    rows, columns = (plan.outputs, plan.rank), (plan.rank, plan.width)
    return {"hada_w1_a": rows, "hada_w1_b": columns, "hada_w2_a": rows, "hada_w2_b": columns}


def _delta(factors: Factors, scale: float) -> Tensor:
    first = factors["hada_w1_a"] @ factors["hada_w1_b"]
    return first * (factors["hada_w2_a"] @ factors["hada_w2_b"]) * scale


def _apply(x: Tensor, factors: Factors, scale: float) -> Tensor:
    outputs, rank = factors["hada_w1_a"].shape
    inputs = factors["hada_w1_b"].shape[1]
    if prefers_khatri_rao(rank, outputs, inputs):
        down, up = khatri_rao(factors)
        return F.linear(F.linear(x, down.to(x.dtype)), scaled(up, scale, x.dtype))
    return F.linear(x, _delta(factors, scale).to(x.dtype))


def _convolve(window: Window, x: Tensor, factors: Factors, scale: float) -> Tensor:
    outputs, rank = factors["hada_w1_a"].shape
    inputs = factors["hada_w1_b"].shape[1]
    if window.groups == 1 and prefers_khatri_rao(rank, outputs, inputs):
        down, up = khatri_rao(factors)
        hidden = window.convolve(x, down.to(x.dtype))
        return window.combine(hidden, scaled(up, scale, x.dtype))
    return window.convolve(x, _delta(factors, scale).to(x.dtype))


def _operands(factors: Factors) -> Operands:
    return tuple(factors[name] for name in _NAMES)


def _takes_path(operands: Operands) -> bool:
    (outputs, rank), inputs = operands[0].shape, operands[1].shape[1]
    return prefers_khatri_rao(rank, outputs, inputs)


def _columns(operands: Operands) -> int:
    rank = operands[0].shape[1]
    return rank * rank if _takes_path(operands) or rank <= _EXACT_RANK else 0


def _shaped(operands: Operands) -> Operands:
    """Such that products of the two upper ones, and of the two lower ones, are outer products."""
    first_up, first_down, second_up, second_down = operands
    return first_up.unsqueeze(2), first_down.unsqueeze(1), second_up.unsqueeze(1), second_down


def _down(operands: Operands, dtype: torch.dtype, turned: bool = False) -> Tensor:
    first, second = operands[1], operands[3]
    rank, inputs = second.shape
    first = first if first.dim() == 3 else first.unsqueeze(1)
    shape = (first.shape[0], rank, inputs)
    # Multiplied in the factors' precision: a number is rounded once, as it is written.
    rounded = None if dtype == first.dtype else first.new_empty(shape, dtype=dtype)
    down = torch.mul(first, second, out=rounded)
    if turned:
        return down.as_strided((inputs, first.shape[0] * rank), (1, inputs))
    return down.view(-1, inputs)


def _upper(operands: Operands, scale: float, dtype: torch.dtype) -> Operands:
    """``up`` as `[out, r, r]`."""
    first, second = operands[0], operands[2]
    shape = (first.shape[0], first.shape[1], second.shape[2])
    rounded = None if dtype == first.dtype else first.new_empty(shape, dtype=dtype)
    return (torch.mul(first if scale == 1.0 else first * scale, second, out=rounded),)


def _add_up(hidden: Tensor, y: Tensor, upper: Operands) -> None:
    columns = hidden.shape[1]
    y.addmm_(hidden, upper[0].as_strided((columns, y.shape[1]), (1, columns)))


def _augment(hidden: Tensor, operands: Operands, scale: float) -> tuple[Tensor, Tensor]:
    (up,) = _upper(operands, scale, hidden.dtype)
    return hidden, up.flatten(1)


def _up_gradients(
    g: Tensor, hidden: Tensor, upper: Operands, operands: Operands, scale: float
) -> tuple[Tensor, list[Tensor | None]]:
    del upper
    first, second = operands[0], operands[2]
    outputs, rank = first.shape[0], second.shape[2]
    if scale != 1.0:
        first = first * scale
    of_up = g.t() @ hidden
    columns = of_up.to(second.dtype).as_strided((outputs, rank, rank), (rank * rank, 1, rank))
    of_first = torch.bmm(second, columns).squeeze(1)
    of_second = torch.bmm(columns, first).squeeze(2)
    if scale != 1.0:
        of_first.mul_(scale)
    # Its gradient is not needed any more, and gives `up` its memory.
    torch.mul(first, second, out=of_up.view(outputs, rank, rank))
    return g @ of_up, [of_first, None, of_second, None]


def _down_gradients(of_down: Tensor, operands: Operands) -> Gradients:
    first, second = operands[1], operands[3]
    parts = of_down.view(first.shape[0], *second.shape)
    # In the factors' precision. A batch of matrices, one for each input, lies across in memory.
    found = (parts * second).sum(1), (parts * first).sum(0)
    torch.mul(first, second, out=parts)  # `leaves_down`
    return found


def _add_whole(x: Tensor, y: Tensor, operands: Operands, scale: float) -> None:
    for part in _row_parts(operands[0].shape[0], operands[1].shape[1]):
        _, _, delta = _delta_rows(operands, part, scale)
        y[:, part].addmm_(x, delta.to(x.dtype).t())


def _whole_gradients(
    g: Tensor, x: Tensor, x_gradient: Tensor | None, operands: Operands, scale: float
) -> Gradients:
    first_up, first_down, second_up, second_down = operands
    of_first_up, of_second_up = torch.empty_like(first_up), torch.empty_like(second_up)
    of_first_down, of_second_down = torch.zeros_like(first_down), torch.zeros_like(second_down)
    for part in _row_parts(first_up.shape[0], first_down.shape[1]):
        first, second, delta = _delta_rows(operands, part, scale)
        rows = g[:, part]
        if x_gradient is not None:
            x_gradient.addmm_(rows, delta.to(g.dtype))
        of_delta = (rows.t() @ x).to(first.dtype).mul_(scale)
        of_first = of_delta * second
        of_second = of_delta.mul_(first)
        of_first_up[part] = of_first @ first_down.t()
        of_first_down += first_up[part].t() @ of_first
        of_second_up[part] = of_second @ second_down.t()
        of_second_down += second_up[part].t() @ of_second
    found = of_first_up, of_first_down, of_second_up, of_second_down
    return cast_gradients(found, operands)


def _row_parts(outputs: int, inputs: int) -> list[slice]:
    """Cut a layer's rows, so that a part of the delta has about `_PART_SIZE` numbers."""
    step = max(1, _PART_SIZE // inputs)
    return [slice(start, min(start + step, outputs)) for start in range(0, outputs, step)]


def _delta_rows(operands: Operands, part: slice, scale: float) -> tuple[Tensor, Tensor, Tensor]:
    """Both products, and the delta at `scale`, of some rows, in the factors' own precision."""
    first_up, first_down, second_up, second_down = operands
    first, second = first_up[part] @ first_down, second_up[part] @ second_down
    return first, second, (first * second).mul_(scale)


_KERNEL = AdapterKernel(
    operands=_operands,
    path=LowRankPath(
        lower=(1, 3),
        down=_down,
        upper=_upper,
        add_up=_add_up,
        up_gradients=_up_gradients,
        down_gradients=_down_gradients,
        leaves_down=True,
        shaped=_shaped,
    ),
    takes_path=_takes_path,
    columns=_columns,
    augment=_augment,
    whole=WholeDelta(_add_whole, _whole_gradients),
)


def _dora_norm_terms(weight: Tensor, factors: Factors, axis: Axis) -> tuple[Tensor, Tensor]:
    operands = _operands(factors)
    outputs, rank = operands[0].shape
    inputs = operands[1].shape[1]
    if prefers_khatri_rao(rank, outputs, inputs):
        return low_rank_norm_terms(weight, *khatri_rao(factors), axis)
    parts = []
    for part in _row_parts(outputs, inputs):
        delta = _delta_rows(operands, part, 1.0)[2]
        pair = torch.stack([weight[part].to(delta.dtype) * delta, delta.square()])
        parts.append(pair.sum(dim=2 if axis == "output" else 1))
    whole = torch.cat(parts, dim=1) if axis == "output" else torch.stack(parts).sum(dim=0)
    return whole[0], whole[1]


def _squared_norm(factors: Factors) -> Tensor:
    operands = _operands(factors)
    outputs, rank = operands[0].shape
    inputs = operands[1].shape[1]
    if prefers_khatri_rao(rank, outputs, inputs):
        down, up = khatri_rao(factors)
        return squared_product(up, down)
    parts = _row_parts(outputs, inputs)
    return torch.stack([_delta_rows(operands, part, 1.0)[2].square().sum() for part in parts]).sum()


def _paced(plan: LayerPlan) -> Mapping[str, Initializer]:
    """Start the first product at ones, and the second one as a LoRA.

    LyCORIS's numbers are 10 to 100 times as large as what Adam moves them in 100 steps, so that the
    delta stays a random pattern times what is learnt. From ones it is a LoRA's delta at first.
    """
    if plan.tucker:
        return {}
    return {
        "hada_w1_a": _ones_in_first_column,
        "hada_w1_b": _ones_in_first_row,
        "hada_w2_b": uniform_by_inputs,
    }


def _ones_in_first_column(up: Tensor, generator: torch.Generator) -> None:
    uniform(up.shape[0] ** -0.5)(up, generator)
    up[:, 0] = 1.0


def _ones_in_first_row(down: Tensor, generator: torch.Generator) -> None:
    uniform_by_inputs(down, generator)
    down[0] = 1.0


def _distance(plan: LayerPlan) -> float:
    if plan.config.init == "lycoris":
        # The first product's numbers are of size sqrt(rank) / 10, those of hada_w2_b of size 1.
        return plan.alpha * 0.1 * math.sqrt(plan.outputs * plan.width) * MOVED
    return low_rank_distance(plan, plan.outputs, plan.width)


LOHA = Kind(
    name="loha",
    factor_names=(*_NAMES, "hada_t1", "hada_t2"),
    shapes=_shapes,
    initializers={
        "hada_w1_a": normal(0.1),
        "hada_w1_b": normal(1.0),
        "hada_w2_b": normal(1.0),
        "hada_t1": normal(0.1),
        "hada_t2": normal(0.1),
    },
    paced=_paced,
    scale=ratio_scale,
    delta=_delta,
    apply=_apply,
    convolve=_convolve,
    kernel=_KERNEL,
    dora_norm_terms=_dora_norm_terms,
    squared_norm=_squared_norm,
    distance=_distance,
)
"""delta = (w1_a @ w1_b) * (w2_a @ w2_b) * alpha / rank.

Source: Hyeon-Woo et al. 2021, arXiv:2108.06098; initialization as in LyCORIS 4.1.3.
"""


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
        *((f".{each}", each, "hada") for each in (*_NAMES, *_CORES)),
        *((f".{each}.default", each, "hada.default") for each in (*_NAMES, *_CORES)),
    )
    rank_factors = ("hada_w1_b",)
    window_factors = ("hada_t1",)
    flat_factors = frozenset(_NAMES)
    filed_planes = _CORES
    scaled_factors = ("hada_w2_a",)
    closest_is_known = False
    comfyui_endings = tuple(f".{each}" for each in (*_NAMES, *_CORES))
    # Diffusers has no LoHa; it is written as the LoRA of rank r^2 that equals it exactly.
    diffusers_kind = "lora"

    def factor_sets(self) -> list[frozenset[str]]:
        return [frozenset(_NAMES), frozenset((*_NAMES, *_CORES))]

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

    def norm_on_device(self, matrices: Tensors) -> Tensor:
        operands = _operands(dict(matrices))
        (rows, rank), columns = operands[0].shape, operands[1].shape[1]
        if prefers_khatri_rao(rank, rows, columns):
            return norm_of_product(*self.product(matrices, 1.0))
        parts = _row_parts(rows, columns)
        squares = [_delta_rows(operands, part, 1.0)[2].square().sum() for part in parts]
        return torch.stack(squares).sum().sqrt().to(torch.float32)

    def product(self, matrices: Tensors, scale: float) -> tuple[Tensor, Tensor]:
        down, up = khatri_rao(dict(matrices))
        return (up if scale == 1.0 else up * scale), down

    def fit(self, source: Tensors, fresh: Tensors) -> tuple[dict[str, Tensor], float]:
        fitted: dict[str, Tensor] = {}
        for pair in self.pairs:
            # A new part of both products has to be zero, and may start to move in one factor.
            new_up = torch.zeros_like(fresh[pair.up])
            up, down, _ = fit_product(source[pair.up], source[pair.down], new_up, fresh[pair.down])
            fitted |= {pair.up: up, pair.down: down}
        rank = max(source[pair.up].shape[1] for pair in self.pairs)
        wanted = fresh["hada_w1_a"].shape[1]
        if rank <= wanted:
            return fitted, 0.0
        error = relative_error(LOHA.delta(fitted, 1.0), LOHA.delta(dict(source), 1.0))
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
            name: (rows, rank) if name.endswith("_a") else (rank, columns) for name in _NAMES
        }

    def diffusers(self, tensors: Tensors, scale: float) -> dict[str, Tensor]:
        up, down = self.product(tensors, 1.0)
        return diffusers_product(scaled_factor(up, scale), down)

    def comfyui_slots(self, found: Mapping[str, str]) -> dict[str, str]:
        if ".hada_w1_a" not in found:
            return {}
        names = (*_NAMES, *_CORES) if ".hada_t1" in found else _NAMES
        return {name: f".{name}" for name in names}

    def comfyui_fault(self, shapes: Mapping[str, Shape]) -> Fault | None:
        names = (*_NAMES[1:], *(["hada_t2"] if "hada_t1" in shapes else []))
        missing = next((name for name in names if name not in shapes), None)
        if missing is not None:
            return Fault("read wrongly", f"{STOPS}: there is no {missing}")
        for pair in self.pairs:
            up, down, core = shapes[pair.up], shapes[pair.down], shapes.get(pair.core)
            if len(up) != 2 or len(down) != 2:
                return Fault("read wrongly", f"{STOPS}: {pair.up} and _b are not matrices")
            if core is None:
                if up[1] != down[0]:
                    return different_ranks(up, down, STOPS)
            elif len(core) != PLANE:
                return Fault("read wrongly", f"{STOPS}: it knows cores with two axes only")
            elif (core[0], core[1]) != (up[0], down[0]):
                return different_ranks(up, down, STOPS)
        if _half(shapes, self.pairs[0]) != _half(shapes, self.pairs[1]):
            return Fault("wrong shape", f"the two halves of the LoHa differ in size: {SKIPS}")
        return None

    def comfyui_sizes(self, shapes: Mapping[str, Shape]) -> Shape:
        rows, *columns = _half(shapes, self.pairs[0])
        return rows, math.prod(columns)

    @staticmethod
    def probe(x: Tensor, matrices: Tensors, scale: float) -> Tensor:
        """Row i of the delta times x is the sum over r and s of a1[i, r] m[r, s] a2[i, s]."""
        first, second = matrices["hada_w1_b"], matrices["hada_w2_b"]
        middle = (first * x.unsqueeze(1)) @ second.T
        return scale * ((matrices["hada_w1_a"] @ middle) * matrices["hada_w2_a"]).sum(dim=-1)


def _half(shapes: Mapping[str, Shape], pair: FactorPair) -> Shape:
    """Shape of one of the two products."""
    up, down, core = shapes[pair.up], shapes[pair.down], shapes.get(pair.core)
    return (up[0], down[1]) if core is None else (up[1], down[1], *core[2:])
