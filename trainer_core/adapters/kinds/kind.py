"""What an adapter kind is: shapes, initialization, the equation, and its factored forward."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from ...config import AdapterConfig
from ...counters import counter_seed
from ...errors import AdapterError
from ..dora_magnitude import DORA_SCALE, Axis
from ..kernels.adapter_kernel import AdapterKernel, Factors
from ..kernels.convolution import Window

Initializer = Callable[[Tensor, torch.Generator], object]
Decomposition = Callable[[Tensor, int, float, torch.Generator], tuple[Tensor, Tensor]]

MOVED = 0.01
"""How far Adam moves a number in 100 steps at a rate of 1e-4, whatever the gradient."""


@dataclass(frozen=True, slots=True)
class LayerPlan:
    """One layer that gets an adapter.

    Attributes:
        name: The layer's name in the adapter's state.
        path: Where it lies in the module.
        inputs: Number of input features; of a convolution, the channels that one output sees.
        outputs: Number of output features or channels.
        rank: Rank of this layer's factors.
        alpha: Alpha of this layer.
        config: The adapter's settings; kinds read their own options from it.
        kernel: A convolution's window; empty for a Linear.
        outline: Shapes of factors that come from elsewhere and follow no rule of splitting.
    """

    name: str
    path: str
    inputs: int
    outputs: int
    rank: int
    alpha: float
    config: AdapterConfig
    kernel: tuple[int, ...] = ()
    outline: Mapping[str, tuple[int, ...]] | None = None

    @property
    def width(self) -> int:
        """Columns of the weight as a matrix: the inputs at every place of the window."""
        return self.inputs * math.prod(self.kernel)

    @property
    def tucker(self) -> bool:
        """Whether a core of its own stands for the window; one of a single place needs none."""
        return self.config.tucker and math.prod(self.kernel) != 1

    @property
    def ones(self) -> tuple[int, ...]:
        """The kernel of a factor that does not look around; empty for a Linear."""
        return (1,) * len(self.kernel)


@dataclass(frozen=True, slots=True)
class Kind:
    """The mathematics of one adapter kind, free of any layer or file.

    Factors are named as LyCORIS and ComfyUI name them. Every function takes them as a mapping
    from name to tensor, and but for `shapes` and `scale` as matrices: those of a convolution by
    `as_matrices`, where "in" is ``in * window``.

    Attributes:
        name: As ``adapter.kind`` names it.
        factor_names: All names that a layer of this kind may have.
        shapes: The factors of a layer and their shapes.
        initializers: Factor name to the function that fills it; a factor that is not named
            starts at zero, and one zero factor makes the whole delta zero. LyCORIS's values.
        paced: A layer to the initializers that ``adapter.init: default`` puts in their place, so
            that an optimizer step moves the layer as far as that of a LoRA; the same ones are zero.
        scale: ``(factors, alpha, rank)`` to the number that multiplies the delta.
        delta: ``(factors, scale)`` to the weight difference ``[out, in]``.
        squared_norm: Matrices to ``|D|^2``, a scalar, for the delta D at scale 1, without building
            D where that costs more; it may be called for several layers at once (`torch.vmap`).
            None of a kind that adds no delta.
        multiplies: Whether the factors multiply the weight from the left instead of being added:
            the difference is ``delta @ weight`` with a `delta` ``[out, out]``, and `apply` and
            `convolve` take what the frozen layer computes, without its bias, in the place of x.
            Nothing that adds, cuts or fuses deltas has anything to do with such a kind.
        apply: ``(x [..., in], factors, scale)`` to ``x @ delta.T`` ``[..., out]`` in the dtype of
            x, without keeping anything of the layer's size: the plain form.
        convolve: ``(window, x [B, in, ...], factors, scale)`` to the convolution of x with the
            delta ``[B, out, ...]`` in the dtype of x.
        kernel: The same, added to a Linear's output in place (`fused_linear`); None where there is
            only the plain form.
        dora_norm_terms: ``(weight [out, in], factors, axis)`` to ``<W, D>`` and ``|D|^2`` of each
            row (axis ``output``) or column (``input``), for the delta D at scale 1; None of a kind
            that knows no DoRA.
        crosses_groups: Whether a factor stands for channels across a convolution's groups.
        layer_rank: ``(outputs, rank)`` to the rank that a layer can have of a wanted one.
        largest_rank: The most that a layer's rank may be; None for any.
        problem: Why a layer cannot have this kind: found, expected, remedy.
        distance: Norm of the delta after 100 steps at a rate of 1e-4 whose gradient stays.
        spread: By how much the delta follows a gradient less closely than the gradient itself.
        notes: What the settings come to in these layers and one may not expect, in sentences.
        other_initializers: The same as `initializers`, by the other names of ``adapter.init``.
        decompositions: Those of them that train the difference from a part of the frozen weight:
            ``(weight [out, in], rank, scale, generator)`` to that part's lower and upper factor.
    """

    name: str
    factor_names: tuple[str, ...]
    shapes: Callable[[LayerPlan], dict[str, tuple[int, ...]]]
    initializers: Mapping[str, Initializer]
    scale: Callable[[Factors, float, int], float]
    delta: Callable[[Factors, float], Tensor]
    apply: Callable[[Tensor, Factors, float], Tensor]
    convolve: Callable[[Window, Tensor, Factors, float], Tensor]
    kernel: AdapterKernel | None = None
    dora_norm_terms: Callable[[Tensor, Factors, Axis], tuple[Tensor, Tensor]] | None = None
    squared_norm: Callable[[Factors], Tensor] | None = None
    multiplies: bool = False
    crosses_groups: bool = False
    layer_rank: Callable[[int, int], int] = lambda outputs, rank: rank
    largest_rank: Callable[[LayerPlan], int | None] = lambda plan: min(plan.width, plan.outputs)
    problem: Callable[[LayerPlan], tuple[str, str, str] | None] = lambda plan: None
    distance: Callable[[LayerPlan], float] = lambda plan: low_rank_distance(
        plan, plan.outputs, plan.width
    )
    spread: Callable[[LayerPlan], float] = lambda plan: 1.0
    notes: Callable[[Sequence[LayerPlan]], tuple[str, ...]] = lambda plans: ()
    paced: Callable[[LayerPlan], Mapping[str, Initializer]] = lambda plan: {}
    other_initializers: Mapping[str, Mapping[str, Initializer]] = field(default_factory=dict)
    decompositions: Mapping[str, Decomposition] = field(default_factory=dict)

    def factor_shapes(self, plan: LayerPlan) -> dict[str, tuple[int, ...]]:
        """The factors of a layer and their shapes: given ones, or those of the kind's rule."""
        return self.shapes(plan) if plan.outline is None else dict(plan.outline)

    def layer_shapes(self, plan: LayerPlan) -> dict[str, tuple[int, ...]]:
        """The factors of a layer and, with DoRA, its magnitude, and their shapes."""
        shapes = self.factor_shapes(plan)
        if plan.config.dora:
            output = plan.config.dora_axis == "output"
            sides = (plan.outputs, 1) if output else (1, plan.inputs)
            shapes[DORA_SCALE] = (*sides, *plan.ones)
        return shapes

    def difference(self, factors: Factors, scale: float, weight: Callable[[], Tensor]) -> Tensor:
        """The weight difference ``[out, in]`` that factors, as matrices, make of a weight.

        `weight` reads the frozen weight; only a kind that multiplies it calls that.
        """
        if not self.multiplies:
            return self.delta(factors, scale)
        own = next(iter(factors.values()))
        columns = weight().flatten(1).to(own.device, own.dtype).t()
        return self.apply(columns, factors, scale).t()

    def initial_factors(self, plan: LayerPlan, seed: int) -> dict[str, Tensor]:
        """Initialize a layer's factors: float32 tensors on the CPU, by factor name.

        Each factor has a generator of its own, named by layer and factor, so that the values depend
        neither on the order of the layers nor on the device.

        Raises:
            AdapterError: When the kind has no initialization of the wanted name.
        """
        initializers = self._initializers(plan)
        factors = {}
        for name, shape in self.factor_shapes(plan).items():
            factor = torch.zeros(shape, dtype=torch.float32)
            if name in initializers:
                generator = torch.Generator().manual_seed(
                    counter_seed(seed, "init", plan.name, name)
                )
                initializers[name](factor, generator)
            factors[name] = factor
        return factors

    def _initializers(self, plan: LayerPlan) -> Mapping[str, Initializer]:
        name = plan.config.init
        if name == "default":
            return {**self.initializers, **self.paced(plan)}
        if name == "lycoris":
            return self.initializers
        if name not in self.other_initializers:
            raise AdapterError(
                f"adapter.init is {name} and adapter.kind is {self.name}",
                "an init of "
                f"{', '.join(('default', 'lycoris', *self.other_initializers))} for this kind",
                "Leave adapter.init out, or set adapter.kind to lora.",
            )
        return self.other_initializers[name]


def squared_product(up: Tensor, down: Tensor) -> Tensor:
    """``|up @ down|^2`` as ``<up^T up, down down^T>``, which are rank x rank."""
    return ((up.mT @ up) * (down @ down.mT)).sum()


def ratio_scale(factors: Factors, alpha: float, rank: int) -> float:
    """Scale of the kinds whose every factor is low-rank: alpha / rank."""
    del factors
    return alpha / rank


def low_rank_distance(plan: LayerPlan, outputs: int, inputs: int) -> float:
    """`Kind.distance` of a product `[outputs, inputs]` of a plan's rank and scale.

    One of its factors starts at zero, the other from ``U(-b, b)`` with b = 1 / sqrt(inputs).
    """
    turned = MOVED * MOVED * plan.rank * math.sqrt(outputs * inputs)
    return plan.alpha / plan.rank * (MOVED * math.sqrt(outputs * plan.rank / 3) + turned)


def normal(std: float) -> Initializer:
    """Initializer: N(0, std^2)."""
    return lambda factor, generator: factor.normal_(0.0, std, generator=generator)


def uniform(bound: float) -> Initializer:
    """Initializer: U(-bound, bound)."""
    return lambda factor, generator: factor.uniform_(-bound, bound, generator=generator)


def uniform_by_inputs(factor: Tensor, generator: torch.Generator) -> Tensor:
    """Initializer: Kaiming's uniform with a = sqrt(5), that is U(-b, b) with b = 1 / sqrt(columns).

    The columns of a factor with a window are its inputs at every place.

    Source:
        He et al. 2015, arXiv:1502.01852; the value of a is torch's habit for Linear layers.
    """
    bound = 1.0 / math.sqrt(factor[0].numel())
    return factor.uniform_(-bound, bound, generator=generator)


def scaled(factor: Tensor, scale: float, dtype: torch.dtype) -> Tensor:
    """Multiply a factor in its own precision, then cast it for the computation."""
    return (factor if scale == 1.0 else factor * scale).to(dtype)
