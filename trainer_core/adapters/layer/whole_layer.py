"""Layers that are trained as the one that ComfyUI makes of them: in their places, and put back.

A LoKr of q, of k and of v is not a LoKr of the layer that holds all three; where ComfyUI has no
name for a part of such a layer (`KeyMap.fused_only`), one adapter is trained over the outputs of
all. The parts keep their places, where each gives its rows of what is computed once for an input.
"""

from __future__ import annotations

import weakref
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, cast

import torch
from torch import Tensor, nn

from ...errors import AdapterError
from ..base.joined_linear import JoinedLinear
from ..targets import Layer, Selection
from .factor_layer import FactorLayer

_INSIDE = "joined"
"""Where the first part holds the layer of all."""


_Kept = tuple["weakref.ref[Tensor]", tuple[Any, ...], dict[int, Tensor]]
"""The input of a pass, what the output depends on besides, and the rows of parts to come."""


class PartOfWhole(nn.Module):
    """Stands in a part's place and gives its rows of the whole layer's output.

    Args:
        index: Which one it is.
        joined: The layer of all parts; the first part has it.
        first: The first part; None for that itself.
    """

    joined: nn.Module
    in_features: int
    out_features: int
    _index: int
    _rows: list[int]
    _own: nn.Module
    _first: PartOfWhole | None
    _outputs: _Kept | None

    def __init__(
        self, own: nn.Module, index: int, joined: JoinedLinear, first: PartOfWhole | None
    ) -> None:
        super().__init__()
        self.in_features, self.out_features = joined.in_features, joined.rows[index]
        self._index, self._rows = index, joined.rows
        # Not registered: its place in the tree is in the joined layer.
        self.__dict__["_own"], self.__dict__["_first"] = own, first
        self._forget()
        if first is None:
            self.joined = joined
        self.training = own.training

    def __getstate__(self) -> dict[str, Any]:
        """A copy has nothing of a pass that is under way."""
        return {**self.__dict__, "_outputs": None}

    @property
    def weight(self) -> Tensor:
        """The part's own weight."""
        return cast("Tensor", self._own.weight)

    @property
    def bias(self) -> Tensor | None:
        """The part's own bias."""
        return cast("Tensor | None", self._own.bias)

    def forward(self, x: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        """The part's rows of the whole output of `[..., in]`."""
        first = self._first or self
        if torch.compiler.is_compiling() or x.is_inference() or args or kwargs:
            return first.joined(x, *args, **kwargs).split(self._rows, dim=-1)[self._index]
        return first.take(x, self._index)

    def take(self, x: Tensor, index: int) -> Tensor:
        """A part's rows; the others' are kept until they are asked for with the same input."""
        stamp = self._stamp(x)
        kept = self._outputs
        if kept is None or kept[0]() is not x or kept[1] != stamp or index not in kept[2]:
            outputs = self.joined(x).split(self._rows, dim=-1)
            own: weakref.ref[PartOfWhole] = weakref.ref(self)
            alive = weakref.ref(x, lambda gone: _forget(own, gone))
            kept = (alive, stamp, dict(enumerate(outputs)))
        output = kept[2].pop(index)
        self.__dict__["_outputs"] = kept if kept[2] else None
        return output

    def _forget(self) -> None:
        self.__dict__["_outputs"] = None

    def _stamp(self, x: Tensor) -> tuple[Any, ...]:
        """What the output depends on besides the numbers of the input."""
        layer = self.joined
        stamp = (x._version, x.requires_grad, torch.is_grad_enabled())
        if not isinstance(layer, FactorLayer):
            return stamp
        factors = (each._version for each in layer.factors().values() if not each.is_inference())
        mode = (layer.strength, layer.training, layer._disable_adapters, len(layer.merged_adapters))
        return (*stamp, *mode, *factors)


def _forget(owner: weakref.ref[PartOfWhole], gone: object) -> None:
    """Let go of outputs whose input is gone: nobody asks for the others any more."""
    part = owner()
    if part is not None and part._outputs is not None and part._outputs[0] is gone:
        part._forget()


@dataclass(frozen=True)
class WholeLayer:
    """Parts that are trained as one layer.

    Attributes:
        parts: The layers, in the order of their rows.
        stands: What is put in their places.
    """

    parts: tuple[Layer, ...]
    stands: tuple[PartOfWhole, ...]

    def put_in(self) -> None:
        """Put what stands for the parts into their places."""
        self._put(self.stands)

    def put_back(self) -> None:
        """Put the parts themselves into their places again."""
        self._put([part.module for part in self.parts])

    def _put(self, modules: Sequence[nn.Module]) -> None:
        for part, module in zip(self.parts, modules, strict=True):
            for owner, attribute in part.places:
                setattr(owner, attribute, module)


def join_parts(
    selection: Selection, whole: Mapping[str, Sequence[str]]
) -> tuple[Selection, tuple[WholeLayer, ...]]:
    """Make one layer of the parts that are only trained together.

    `whole` is the name of a whole layer to the paths of its parts, in the order of their rows.
    Gives the selection with whole layers in place of their parts, and these.

    Raises:
        AdapterError: When some parts of a layer are chosen and others are not, or one is not a
            Linear.
    """
    layers = dict(selection.layers)
    found: list[WholeLayer] = []
    for name, paths in whole.items():
        missing = [path for path in paths if path not in layers]
        if len(missing) == len(paths):
            continue
        if missing:
            chosen = next(path for path in paths if path in layers)
            raise AdapterError(
                f"adapter.targets: {chosen} is chosen and {missing[0]} is not; ComfyUI has both in "
                f"one layer ({name}), and no name for a part of it",
                "all parts of such a layer, or none",
                f"Choose {', '.join(missing)} too, or leave out {chosen} with adapter.exclude.",
            )
        parts = tuple(layers.pop(path) for path in paths)
        _check(name, parts)
        layers[name], joined = _joined(parts)
        found.append(joined)
    ordered = {name: layers[name] for name in sorted(layers)}
    return replace(selection, layers=ordered), tuple(found)


def _joined(parts: tuple[Layer, ...]) -> tuple[Layer, WholeLayer]:
    joined = JoinedLinear([part.module for part in parts])
    first = PartOfWhole(parts[0].module, 0, joined, None)
    rest = [
        PartOfWhole(part.module, index, joined, first) for index, part in enumerate(parts[1:], 1)
    ]
    path = f"{parts[0].paths[0]}.{_INSIDE}"
    return Layer((path,), joined, ((first, _INSIDE),)), WholeLayer(parts, (first, *rest))


def _check(name: str, parts: Sequence[Layer]) -> None:
    inputs = {getattr(part.module, "in_features", None) for part in parts}
    if len(inputs) > 1 or not all(isinstance(part.module, nn.Linear) for part in parts):
        raise AdapterError(
            f"the parts of {name} are "
            + ", ".join(f"a {type(part.module).__name__} ({part.paths[0]})" for part in parts),
            "Linears of one number of inputs, which ComfyUI has as one layer",
            "Leave them out with adapter.exclude.",
        )
