"""What an adapter kind is: shapes, first values, the equation, and its factored forward."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from ..config import AdapterConfig
from ..counters import counter_seed

Factors = Mapping[str, Tensor]
Initializer = Callable[[Tensor, torch.Generator], object]


@dataclass(frozen=True, slots=True)
class LayerPlan:
    """One layer that gets an adapter.

    Attributes:
        name: The layer's name in the adapter's state.
        path: Where it lies in the module.
        inputs: Number of input features.
        outputs: Number of output features.
        rank: Rank of this layer's factors.
        alpha: Alpha of this layer.
        config: The adapter's settings; kinds read their own options from it.
    """

    name: str
    path: str
    inputs: int
    outputs: int
    rank: int
    alpha: float
    config: AdapterConfig


@dataclass(frozen=True, slots=True)
class Kind:
    """The mathematics of one adapter kind, free of any layer or file.

    Factors are named as LyCORIS and ComfyUI name them. Every function takes them as a mapping
    from name to tensor.

    Attributes:
        name: ``lora``, ``loha`` or ``lokr``.
        factor_names: All names that a layer of this kind may have.
        shapes: The factors of a layer and their shapes.
        initializers: Factor name to the function that fills it; a factor that is not named
            starts at zero, and one zero factor makes the whole delta zero.
        scale: ``(factors, alpha, rank)`` to the number that multiplies the delta.
        delta: ``(factors, scale)`` to the weight difference ``[out, in]``.
        apply: ``(x [..., in], factors, scale)`` to ``x @ delta.T`` ``[..., out]`` in the dtype of
            x, without keeping anything of the layer's size.
    """

    name: str
    factor_names: tuple[str, ...]
    shapes: Callable[[LayerPlan], dict[str, tuple[int, int]]]
    initializers: Mapping[str, Initializer]
    scale: Callable[[Factors, float, int], float]
    delta: Callable[[Factors, float], Tensor]
    apply: Callable[[Tensor, Factors, float], Tensor]

    def initial_factors(self, plan: LayerPlan, seed: int) -> dict[str, Tensor]:
        """Make the first values of a layer's factors.

        Each factor has a generator of its own, named by layer and factor, so that the values
        depend neither on the order of the layers nor on the device.

        Args:
            plan: The layer.
            seed: The run's seed.

        Returns:
            Factor name to a float32 tensor on the CPU.
        """
        factors = {}
        for name, shape in self.shapes(plan).items():
            factor = torch.zeros(shape, dtype=torch.float32)
            if name in self.initializers:
                generator = torch.Generator().manual_seed(
                    counter_seed(seed, "init", plan.name, name)
                )
                self.initializers[name](factor, generator)
            factors[name] = factor
        return factors


def ratio_scale(factors: Factors, alpha: float, rank: int) -> float:
    """Scale of the kinds whose every factor is low-rank: alpha / rank."""
    del factors
    return alpha / rank


def normal(std: float) -> Initializer:
    """Initializer: N(0, std^2)."""
    return lambda factor, generator: factor.normal_(0.0, std, generator=generator)


def uniform_by_inputs(factor: Tensor, generator: torch.Generator) -> Tensor:
    """Initializer: Kaiming's uniform with a = sqrt(5), that is U(-b, b) with b = 1 / sqrt(columns).

    Source:
        He et al. 2015, arXiv:1502.01852; the value of a is torch's habit for Linear layers.
    """
    bound = 1.0 / math.sqrt(factor.shape[1])
    return factor.uniform_(-bound, bound, generator=generator)


def scaled(factor: Tensor, scale: float, dtype: torch.dtype) -> Tensor:
    """Multiply a factor in its own precision, then cast it for the computation."""
    return (factor if scale == 1.0 else factor * scale).to(dtype)
