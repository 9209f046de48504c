"""Layers that read the same input, as q, k and v of an attention block do.

Such layers are called one after the other with the same tensor. Each for itself would read it for a
narrow product of its own, and autograd would sum the input's gradients that they return, each as
large as the input. Here the first one that is called makes the narrow products of all as one, and
on the way back they add into one gradient, to which the narrow parts of all are added at once.

Every layer still computes its own output in its own call. So hooks on it are called as ever, and
one that is never called, or with another input, gets no gradient and costs no more than its few
columns. The input counts as the same by identity and version.

Nothing is kept for the way back beyond what the layers keep for themselves, and under the same
conditions, so that gradient checkpointing and moving kept tensors away work as without.
"""

from __future__ import annotations

import re
import weakref
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar, Protocol, cast

import torch
from torch import Tensor, nn

from ...config import AdapterConfig
from ..base.sharding import is_part
from ..kernels.fused import Narrow, Operands, values_of
from ..kernels.shared_linear import (
    Forget,
    Part,
    Slot,
    WayBack,
    enter,
    passes_are_told_apart,
    shared_linear,
)
from ..kinds.kind import Kind
from .dispatch import is_fusable, is_taken_as_it_is, is_watched

_MOST_UNFINISHED = 2
"""Inputs in a row that not all layers came for, after which they no longer wait for each other."""


class SharingLayer(Protocol):
    """What a layer is asked when it may share an input."""

    kind: ClassVar[Kind]
    config: AdapterConfig
    base_layer: nn.Module
    strength: float
    in_features: int
    shared: SharedInput | None

    @property
    def disable_adapters(self) -> bool: ...  # noqa: D102
    @property
    def merged(self) -> bool: ...  # noqa: D102
    @property
    def weight_shape(self) -> tuple[int, ...]: ...  # noqa: D102
    def is_alone(self) -> bool: ...  # noqa: D102
    def factors(self) -> dict[str, nn.Parameter]: ...  # noqa: D102
    def factors_on(self, device: torch.device) -> dict[str, Tensor]: ...  # noqa: D102


class SharedInput:
    """Layers that are called with the same input, one after the other.

    A copy of it has no layers: each layer of a copied model computes by itself.

    Args:
        layers: At least two, of the same number of input features.
    """

    def __init__(self, layers: Sequence[SharingLayer]) -> None:
        self._layers = tuple(layers)
        self._visit: _Visit | None = None
        self._seen: _Seen | None = None
        self._unfinished = 0

    def __getstate__(self) -> dict[str, Any]:
        # The copy of one layer must not bring its neighbours along, nor a graph that is running.
        return {"_layers": (), "_visit": None, "_seen": None, "_unfinished": 0}

    @property
    def waits_for(self) -> tuple[SharingLayer, ...]:
        """The layers that were not yet called with the present input; none between two inputs."""
        visit = self._visit
        places = {} if visit is None else visit.places
        return tuple(layer for layer in self._layers if id(layer) in places)

    def output(self, layer: SharingLayer, x: Tensor, scale: float) -> Tensor | None:
        """What a layer computes from an input.

        Args:
            layer: One of the layers, whose base `is_fusable` with x and which `is_alone`.
            x: `[..., in]`.
            scale: Multiplies the layer's contribution.

        Returns:
            `[..., out]`; None where there is nothing to share, and the layer computes by itself.
        """
        # Without gradients, too, so that a pass that is made again for them has the same bits; but
        # tensors of inference mode do not tell when they change.
        if x.is_inference():
            return None
        # Another thread may put its own in the place of the present one at any time.
        visit = self._visit
        if visit is None or not visit.awaits(layer, x):
            visit = self._begin(layer, x)
        place = None if visit is None else visit.places.pop(id(layer), None)
        if visit is None or place is None:
            return None
        if not visit.places:
            self._unfinished = 0
            if self._visit is visit:
                self._visit = None
        return visit.output(place, layer, x, scale)

    def _begin(self, layer: SharingLayer, x: Tensor) -> _Visit | None:
        if self._visit is not None:
            self._visit, self._unfinished = None, self._unfinished + 1
        if self._unfinished >= _MOST_UNFINISHED:
            self._watch(layer, x)
            return None
        ready = self._ready(x)
        if len(ready) < 2 or not any(each is layer for each in ready):
            return None
        visit = self._visit = _Visit(self, x, ready)
        return visit

    def _ready(self, x: Tensor) -> list[SharingLayer]:
        return [each for each in self._layers if _is_ready(each, x)]

    def _watch(self, layer: SharingLayer, x: Tensor) -> None:
        """See whether all layers come for an input after all, while they do not wait."""
        seen = self._seen
        if seen is None or seen.x() is not x:
            seen = self._seen = _Seen(weakref.ref(x), {id(each) for each in self._ready(x)})
        seen.missing.discard(id(layer))
        if not seen.missing:
            self._seen, self._unfinished = None, 0

    def forget(self, back: WayBack) -> None:
        """Let go of an input that is gone, or whose way back is done."""
        visit = self._visit
        if visit is not None and visit.back is back:
            self._visit, self._unfinished = None, self._unfinished + 1

    def release(self) -> None:
        """Let go of the present input."""
        self._visit = self._seen = None


def _may_share(layer: SharingLayer) -> bool:
    """Whether a layer computes on its input as it is, beside the base's own output."""
    config = layer.config
    stretches = config.dora and config.dora_axis == "input"
    return len(layer.weight_shape) == 2 and not stretches and not config.exact_delta


def _is_ready(layer: SharingLayer, x: Tensor) -> bool:
    """Whether a layer, called with x now, computes as it does here."""
    base = layer.base_layer
    if layer.disable_adapters or layer.merged or not layer.strength or not layer.is_alone():
        return False
    if not is_taken_as_it_is(x) or is_watched(base) or not is_fusable(base, x):
        return False
    # With a part that FSDP keeps of a factor, only the layer itself can compute.
    return not any(is_part(each) for each in layer.factors().values())


@dataclass(frozen=True)
class _Place:
    """What waits for a layer.

    Attributes:
        operands: Of its factors.
        stamp: Which factors, in which version, and whether they learn.
        slot: Its part in the narrow product; None where it has no such form.
    """

    operands: Operands
    stamp: tuple[tuple[int, int, bool], ...]
    slot: Slot | None


@dataclass(frozen=True)
class _Seen:
    """An input that the layers do not share.

    Attributes:
        x: Gives it while it lives.
        missing: Identities of the layers that were not called with it.
    """

    x: weakref.ref[Tensor]
    missing: set[int]


class _Visit:
    """One input while layers are called with it.

    Attributes:
        places: By the identity of the layers that were not yet called.
    """

    def __init__(self, group: SharedInput, x: Tensor, layers: Sequence[SharingLayer]) -> None:
        self._as_begun = _conditions(x)
        self.places: dict[int, _Place] = {}
        size = (0, 0)
        for layer in layers:
            operands = layer.kind.branch.operands(layer.factors_on(x.device))
            slot = _slot(layer.kind.branch.narrow(operands), operands, size)
            if slot is not None:
                size = slot.columns.stop, slot.narrow.size(operands)[1]
            self.places[id(layer)] = _Place(operands, _stamp(layer), slot)
        stacked = [(each.slot, each.operands) for each in self.places.values() if each.slot]
        self._hidden = _stacked_product(x, stacked, size) if stacked else None
        self.back = WayBack([slot for slot, _ in stacked], size, x.requires_grad)
        lower = [operands[at] for slot, operands in stacked for at in slot.lower]
        # The group may be waiting with what is in this graph: the graph does not keep the group.
        forget = weakref.WeakMethod(group.forget)
        self._link = enter(x, self.back, forget, lower)
        # An exception may keep the other layers from coming: nothing waits for longer than x lives.
        self._x = weakref.ref(x, partial(_tell, forget, self.back))

    def awaits(self, layer: SharingLayer, x: Tensor) -> bool:
        """Whether a layer's part is still to come, with this input and the factors as they were."""
        place = self.places.get(id(layer))
        if place is None or x is not self._x() or self._as_begun != _conditions(x):
            return False
        return place.stamp == _stamp(layer)

    def output(self, place: _Place, layer: SharingLayer, x: Tensor, scale: float) -> Tensor:
        """A layer's own output."""
        linear, operands, hidden = cast("nn.Linear", layer.base_layer), place.operands, None
        if place.slot is not None and self._hidden is not None:
            hidden, lower = self._hidden[:, place.slot.columns], place.slot.lower
            # The entry gives these their gradient.
            operands = tuple(p.detach() if at in lower else p for at, p in enumerate(operands))
        part = Part(layer.kind.branch, self.back, place.slot, scale)
        return shared_linear(self._link, x.detach(), linear, hidden, part, *operands)


def _slot(narrow: Narrow | None, operands: Operands, before: tuple[int, int]) -> Slot | None:
    """A layer's columns beside those before; its parts of the input must be as wide as theirs."""
    if narrow is None:
        return None
    columns, width = narrow.size(operands)
    if before[0] and width != before[1]:
        return None
    return Slot(narrow, slice(before[0], before[0] + columns), narrow.lower(operands))


def _conditions(x: Tensor) -> tuple[int, bool, bool]:
    """What may change of an input, and around it, between two calls."""
    return x._version, x.requires_grad, torch.is_grad_enabled()


def _stamp(layer: SharingLayer) -> tuple[tuple[int, int, bool], ...]:
    held = layer.factors().values()
    return tuple((id(each), each._version, each.requires_grad) for each in held)


def _tell(forget: Forget, back: WayBack, gone: object) -> None:
    """Say that the input of a visit is gone."""
    del gone
    tell = forget()
    if tell is not None:
        tell(back)


def _stacked_product(
    x: Tensor, stacked: Sequence[tuple[Slot, Operands]], size: tuple[int, int]
) -> Tensor:
    """`[T * P, R]`: the input times the lower factors of all layers."""
    with torch.no_grad():
        down = x.new_empty(size)
        for slot, operands in stacked:
            slot.narrow.fill_down(down[slot.columns], values_of(operands))
        return x.reshape(-1, size[1]) @ down.t()


def share_inputs(
    layers: Mapping[str, SharingLayer], patterns: Sequence[re.Pattern[str]]
) -> tuple[tuple[str, ...], ...]:
    r"""Let layers that read the same input share it.

    Args:
        layers: Name to layer.
        patterns: Each matches whole names; layers that one of them matches with the same groups,
            as ``(.*)\.to_[qkv]`` does, are called with the same input, one after the other.

    Returns:
        The names of the layers that share, by input.
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
