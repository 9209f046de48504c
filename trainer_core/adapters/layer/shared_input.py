"""The shared-input pass: layers that read the same input, as q, k and v of an attention block do.

Such layers are called one after the other with the same tensor. Each for itself would read it for a
low-rank product of its own, and autograd would sum the input's gradients that they return, each as
large as the input. Here the first one that is called makes the low-rank products of all as one, and
in the backward pass they add into one gradient, to which the low-rank parts of all are added at
once.

Every layer still computes its own output in its own call. So hooks on it are called as ever, and
one that is never called, or with another input, gets no gradient and costs no more than its few
columns. The input counts as the same by identity and version.

Nothing is saved for backward beyond what the layers save for themselves, and under the same
conditions, so that gradient checkpointing and moving saved tensors away work as without.
"""

from __future__ import annotations

import re
import weakref
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from ..base.dense_weight import PLAIN_TYPES
from ..kernels.adapter_kernel import LowRankPath, Operands
from ..kernels.gradient_accumulator import (
    Forget,
    GradientAccumulator,
    RankSlice,
    enter,
    passes_are_told_apart,
)
from .dispatch import AdaptedLayer, computes_alone, fusable_base

_MOST_UNFINISHED = 2
"""Inputs in a row that not all layers came for, after which they no longer wait for each other."""


Share = tuple[Tensor, RankSlice, Tensor | None, Operands]
"""What a layer has of a shared input, when its turn comes.

The link to where the input's gradient goes, the layer's slice for its backward pass, its columns of
the low-rank product, or None, and the operands.
"""


class SharedInput:
    """Layers that are called with the same input, one after the other.

    A copy of it has no layers: each layer of a copied model computes by itself.

    Args:
        layers: At least two, of the same number of input features.
    """

    def __init__(self, layers: Sequence[AdaptedLayer]) -> None:
        self._layers = tuple(layers)
        self._pass: _Pass | None = None
        self._seen: _Seen | None = None
        self._unfinished = 0

    def __getstate__(self) -> dict[str, Any]:
        # The copy of one layer must not bring its neighbours along, nor a graph that is running.
        return {"_layers": (), "_pass": None, "_seen": None, "_unfinished": 0}

    @property
    def waits_for(self) -> tuple[AdaptedLayer, ...]:
        """The layers that were not yet called with the present input; none between two inputs."""
        current = self._pass
        waiting = {} if current is None else current.waiting
        return tuple(layer for layer in self._layers if id(layer) in waiting)

    def take(self, layer: AdaptedLayer, x: Tensor) -> Share | None:
        """What a layer, which `computes_alone` and has a `fusable_base`, computes of x `[..., in]`.

        None where there is nothing to share, and the layer computes by itself.
        """
        # Without gradients, too, so that a pass that is made again for them has the same bits; but
        # tensors of inference mode do not tell when they change.
        if x.is_inference():
            return None
        # Another thread may put its own in the place of the present one at any time.
        current = self._pass
        if current is None or not current.awaits(layer, x):
            current = self._begin(layer, x)
            if current is None:
                return None
        part = current.waiting.pop(id(layer), None)
        if not current.waiting:
            self._unfinished = 0
            if self._pass is current:
                self._pass = None
        return None if part is None else part[1]

    def _begin(self, layer: AdaptedLayer, x: Tensor) -> _Pass | None:
        if self._pass is not None:
            self._pass, self._unfinished = None, self._unfinished + 1
        if self._unfinished >= _MOST_UNFINISHED:
            self._watch(layer, x)
            return None
        ready = self._ready(x)
        if len(ready) < 2:
            return None
        current = _Pass(self, x, ready)
        if id(layer) not in current.waiting:
            return None
        self._pass = current
        return current

    def _ready(self, x: Tensor) -> list[_Ready]:
        ready: list[_Ready] = []
        for each in self._layers:
            if computes_alone(each, x) and each.strength and fusable_base(each, x) is not None:
                factors = each.factors()
                # With a part that FSDP keeps of a factor, only the layer itself can compute.
                for factor in factors.values():
                    if type(factor) not in PLAIN_TYPES or factor.dim() < 2:
                        break
                else:
                    ready.append((each, factors))
        return ready

    def _watch(self, layer: AdaptedLayer, x: Tensor) -> None:
        """See whether all layers come for an input after all, while they do not wait."""
        last = self._seen
        if last is None or last.x() is not x:
            last = self._seen = _Seen(weakref.ref(x), {id(each) for each, _ in self._ready(x)})
        last.missing.discard(id(layer))
        if not last.missing:
            self._seen, self._unfinished = None, 0

    def forget(self, accumulator: GradientAccumulator) -> None:
        """Let go of an input that is gone, or whose backward pass is done."""
        current = self._pass
        if current is not None and current.accumulator is accumulator:
            self._pass, self._unfinished = None, self._unfinished + 1

    def release(self) -> None:
        """Let go of the present input."""
        self._pass = self._seen = None


class _Seen(NamedTuple):
    """An input that the layers do not share.

    Attributes:
        x: Gives it while it lives.
        missing: Identities of the layers that were not called with it.
    """

    x: weakref.ref[Tensor]
    missing: set[int]


_Ready = tuple[AdaptedLayer, dict[str, nn.Parameter]]
"""A layer that can share an input now, and its factors."""

_Stamp = list[tuple[Tensor, int, bool]]
"""A layer's factors, their versions, and whether they learn."""


class _Pass:
    """One input while layers are called with it.

    Attributes:
        waiting: By the identity of the layers that were not yet called.
        accumulator: Of the input's gradient.
    """

    def __init__(self, group: SharedInput, x: Tensor, layers: Sequence[_Ready]) -> None:
        self._as_begun = (x._version, x.requires_grad, torch.is_grad_enabled())
        self.waiting: dict[int, tuple[_Stamp, Share]] = {}
        kernel = layers[0][0].kind.kernel
        assert kernel is not None
        path = kernel.path
        accumulator = self.accumulator = GradientAccumulator(path, x.requires_grad)
        # The group may be waiting with what is in this graph: the graph does not keep the group.
        forget = weakref.WeakMethod(group.forget)
        # An exception may keep the other layers from coming: nothing waits for longer than x lives.
        self._x = weakref.ref(x, partial(_tell, forget, accumulator))
        operands: list[Operands] = []
        slices: list[RankSlice] = []
        lower: list[Tensor] = []
        taken: list[Operands] = []
        at = path.lower[0]
        for layer, factors in layers:
            own = layer.operands_for(x, factors)
            # A layer's parts of the input must be as wide as those of the others.
            takes = kernel.takes_path(own)
            takes = takes and (not taken or own[at].shape[1] == taken[0][at].shape[1])
            operands.append(own)
            slices.append(RankSlice(accumulator, takes))
            if takes:
                taken.append(own)
                accumulator.slices.append(slices[-1])
                lower += [own[each] for each in path.lower]
        sizes: list[int] = []
        downs = partial(_downs, path, taken, x.dtype, sizes)
        link, product = enter(x, accumulator, forget, downs, *lower)
        axis = 1 if path.keeps_hidden else 0
        hidden = iter(() if product is None else product.split_with_sizes(sizes, dim=axis))
        for (layer, factors), own, part in zip(layers, operands, slices, strict=True):
            stamp: _Stamp = []
            for factor in factors.values():
                stamp.append((factor, factor._version, factor.requires_grad))
            share = (link, part, next(hidden) if part.shares_path else None, own)
            self.waiting[id(layer)] = stamp, share

    def awaits(self, layer: AdaptedLayer, x: Tensor) -> bool:
        """Whether a layer's part is still to come, with this input and the factors as they were."""
        part = self.waiting.get(id(layer))
        if part is None or x is not self._x():
            return False
        if self._as_begun != (x._version, x.requires_grad, torch.is_grad_enabled()):
            return False
        for now, (then, version, learns) in zip(layer.factors().values(), part[0], strict=True):
            if now is not then or now._version != version or now.requires_grad != learns:
                return False
        return True


def _tell(forget: Forget, accumulator: GradientAccumulator, gone: object) -> None:
    """Say that the input of a pass is gone."""
    del gone
    tell = forget()
    if tell is not None:
        tell(accumulator)


def _downs(
    path: LowRankPath, taken: Sequence[Operands], dtype: torch.dtype, sizes: list[int]
) -> list[Tensor]:
    """``down`` of each layer; writes down how many rows each has."""
    downs: list[Tensor] = []
    for operands in taken:
        downs.append(path.down(operands, dtype))
        sizes.append(downs[-1].shape[0])
    return downs


def _may_share(layer: AdaptedLayer) -> bool:
    """Whether a layer computes on its input as it is, beside the base's own output."""
    config = layer.config
    stretches = config.dora and config.dora_axis == "input"
    fuses = layer.kind.kernel is not None and not config.exact_delta
    return fuses and len(layer.weight_shape) == 2 and not stretches


def share_inputs(
    layers: Mapping[str, AdaptedLayer], patterns: Sequence[re.Pattern[str]]
) -> tuple[tuple[str, ...], ...]:
    r"""Let layers that read the same input share it, and give their names, by input.

    Each pattern matches whole names; layers that one of them matches with the same groups, as
    ``(.*)\.to_[qkv]`` does, are called with the same input, one after the other.
    """
    found: dict[tuple[Any, ...], list[str]] = {}
    for name, layer in layers.items() if passes_are_told_apart() else ():
        matches = ((pattern, pattern.fullmatch(name)) for pattern in patterns)
        first = next(((pattern, match) for pattern, match in matches if match), None)
        if first is not None and _may_share(layer):
            key = (first[0], first[1].groups(), layer.in_features)
            found.setdefault(key, []).append(name)
    shared = tuple(tuple(names) for names in found.values() if len(names) > 1)
    for names in shared:
        group = SharedInput([layers[name] for name in names])
        for name in names:
            layers[name].shared = group
    return shared
