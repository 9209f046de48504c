"""`WeightNormLimit`: scales layers down, after an update, that are too large beside their weights.

The delta of every kind that adds one is a product in which each factor stands once. So it is scaled
by s when each of its n factors is scaled by the n-th root of s, which keeps their balance. The
magnitude of DoRA is no such factor: what is limited is the delta before it.

Layers of one form are stacked and go through every operation together, because a launch for each of
hundreds of layers would take longer than the arithmetic. Nothing waits for the device.

Source:
    The idea of "max norm regularization" of kohya's trainers, which limit the norm of the delta and
    not its share of the weight's.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from .attachment import AttachedAdapter
from .dora_magnitude import DORA_SCALE, squared_norms
from .kernels.convolution import as_matrices
from .kinds.kind import Kind
from .layer.dispatch import ADAPTER_NAME
from .layer.factor_layer import FactorLayer

_STACKED_BYTES = 1 << 25
"""Of factors that are stacked at once; what a kind computes on the way takes a few times as much.
"""


@dataclass(frozen=True, slots=True)
class _Stack:
    """Layers whose factors have the same shapes.

    Attributes:
        factors: Name of a factor to that of each layer.
        most: Largest norm of each one's delta at scale 1 `[n]`.
    """

    factors: Mapping[str, Sequence[Tensor]]
    most: Tensor


class WeightNormLimit:
    """Scales an adapter's layers down whose delta is too large beside the base's weight.

    Args:
        adapter: In training; its factors stay the same tensors.
        limit: The largest norm of a layer's delta over that of its weight, above 0. Layers whose
            weight is zero have none.
        weights: What `weight_norm_tensors` gave for the adapter.

    Raises:
        ValueError: When the adapter's kind has no norm.

    Attributes:
        names: The layers, in the order of the counts.
        scaled: How many layers the last call of `apply` has scaled, a scalar on the device.
        times: How often each layer was scaled `[layers]`, on the device.
    """

    def __init__(
        self, adapter: AttachedAdapter, limit: float, weights: Mapping[str, Tensor]
    ) -> None:
        layers = sorted(adapter.layers.items(), key=lambda item: (_shapes(item[1]), item[0]))
        self.names = tuple(name for name, _ in layers)
        self._kind: Kind = layers[0][1].kind
        if self._kind.squared_norm is None:
            raise ValueError(f"kind {self._kind.name} has no norm of what it adds")
        self._stacks = _stacks([(layer, limit * weights[name]) for name, layer in layers])
        device = self._stacks[0].most.device
        self.times = torch.zeros(len(layers), dtype=torch.int64, device=device)
        self.scaled = torch.zeros((), dtype=torch.int64, device=device)

    @torch.no_grad()
    def apply(self) -> None:
        """Scale every layer that is too strong down to the limit; all others keep their bits."""
        found = [self._limited(stack) for stack in self._stacks]
        exceeding = torch.cat(found)
        self.scaled = exceeding.sum()
        self.times += exceeding

    def most_often(self) -> tuple[str, int, int] | None:
        """The layer that was scaled most often, how often, and how many layers ever were.

        Waits for the device. None where none was.
        """
        times = self.times.tolist()
        most = max(times)
        if not most:
            return None
        return self.names[times.index(most)], most, sum(each > 0 for each in times)

    def _limited(self, stack: _Stack) -> Tensor:
        stacked = {name: torch.stack(list(each)) for name, each in stack.factors.items()}
        norms = stacked_delta_norms(self._kind, stacked).to(stack.most.dtype)
        share = stack.most / norms
        # What is not finite is left as it is, for those who look for it.
        exceeding = share < 1.0
        each_factor = torch.where(exceeding, share, 1.0) ** (1.0 / len(stacked))
        for name, held in stack.factors.items():
            factors = stacked[name]
            size = each_factor.to(factors.dtype).view(-1, *(1,) * (factors.dim() - 1))
            torch._foreach_copy_(list(held), list(factors.mul_(size).unbind()))  # pyright: ignore[reportPrivateImportUsage]
        return exceeding


def stacked_delta_norms(kind: Kind, stacked: Mapping[str, Tensor]) -> Tensor:
    """Frobenius norms `[n]` of the deltas of n layers at scale 1, without building one.

    Factors of all layers are stacked, `[n, ...]`; dtype and device are theirs.
    """
    squared_norm = kind.squared_norm
    assert squared_norm is not None, kind.name

    def one(factors: Mapping[str, Tensor]) -> Tensor:
        return squared_norm(as_matrices(factors))

    return torch.vmap(one)(dict(stacked)).clamp_(min=0.0).sqrt_()


@torch.no_grad()
def weight_norm_tensors(adapter: AttachedAdapter) -> dict[str, Tensor]:
    """Frobenius norms of the frozen weights under an adapter, each a scalar where its weight is.

    Reads every weight once, in the number format that it has or is dequantized to.

    Raises:
        AdapterError: When a weight cannot be read.
    """
    return {
        name: squared_norms(layer.frozen_weight().detach().flatten(1), "output").sum().sqrt()
        for name, layer in adapter.layers.items()
    }


def _trained(layer: FactorLayer) -> dict[str, Tensor]:
    return {
        name: each.detach() for name, each in sorted(layer.factors().items()) if name != DORA_SCALE
    }


def _shapes(layer: FactorLayer) -> list[tuple[str, tuple[int, ...]]]:
    return [(name, tuple(each.shape)) for name, each in _trained(layer).items()]


def _stacks(layers: Sequence[tuple[FactorLayer, Tensor]]) -> list[_Stack]:
    """Cut sorted layers where their shapes change, and where a stack would be too large.

    Each comes with the largest norm of its delta.
    """
    found: list[_Stack] = []
    for _, alike in itertools.groupby(layers, key=lambda each: _shapes(each[0])):
        members = list(alike)
        size = sum(each.nbytes for each in _trained(members[0][0]).values())
        count = max(1, _STACKED_BYTES // size)
        found += [_stack(members[at : at + count]) for at in range(0, len(members), count)]
    return found


def _stack(members: Sequence[tuple[FactorLayer, Tensor]]) -> _Stack:
    factors = [_trained(layer) for layer, _ in members]
    held = {name: [each[name] for each in factors] for name in factors[0]}
    device = next(iter(factors[0].values())).device
    most = torch.stack(
        [(norm / abs(layer.scaling[ADAPTER_NAME])).to(device) for layer, norm in members]
    )
    return _Stack(held, torch.where(most > 0, most, torch.inf))
