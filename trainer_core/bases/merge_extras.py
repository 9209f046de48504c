"""Differences that are no factors, such as ``diff`` and ``diff_b``, as changes of a base's tensors.

They are named as ComfyUI names its layers; a Diffusers folder may hold such a layer in parts, or
with its halves in the opposite order. Of several for one tensor ComfyUI takes one, and a strength
does not weaken ``set_weight`` (``comfy/lora.py``, `load_lora` and `calculate_weight`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import partial

from torch import Tensor

from ..adapter_files.factors.outlines import patch_outline
from ..errors import AdapterError
from ..types import AdapterState
from .open import BaseWeights, Place

_ORDERS = {"weight": ("set_weight", "diff", "w_norm"), "bias": ("diff_b", "b_norm")}
"""Which tensor of a layer an ending means; the first that is there counts."""


def extra_changes(
    base: BaseWeights, state: AdapterState, strength: float
) -> Iterator[tuple[str, Place, Callable[[Tensor], Tensor]]]:
    """Find the places of an adapter's differences in a base.

    Args:
        base: The base.
        state: The adapter; nothing is read of it yet.
        strength: Multiplies the differences.

    Yields:
        A name for reports, the place, and the function from the weight there to its change.

    Raises:
        AdapterError: When a tensor is not in the base or has another shape.
    """
    pieces = _pieces(base) if state.extras and not base.native else {}
    for native in state.extras:
        tensors = patch_outline(state, native)
        for kind, endings in _ORDERS.items():
            ending = next((each for each in endings if each in tensors), None)
            if ending is None:
                continue
            title = f"{native}.{ending}"
            found = pieces.get(f"{native}.{kind}") or _direct(base, f"{native}.{kind}")
            _check(base, title, tuple(tensors[ending].shape), [place for place, _ in found])
            start = 0
            for place, swapped in found:
                rows = slice(start, start + place.shape[0])
                start = rows.stop
                own = title if len(found) == 1 else f"{title} ({place.name})"
                change = partial(_change, state.extras, native, ending, rows, swapped, strength)
                yield own, place, change


def _change(
    extras: Mapping[str, Mapping[str, Tensor]],
    native: str,
    ending: str,
    rows: slice,
    swapped: bool,
    strength: float,
    weight: Tensor,
) -> Tensor:
    value = extras[native][ending][rows].to(weight.dtype)
    if swapped:
        value = value.roll(len(value) // 2, 0)
    if ending != "set_weight":
        return value * strength
    return value - weight if strength else weight * 0.0


def _direct(base: BaseWeights, name: str) -> list[tuple[Place, bool]]:
    place = base.place(name)
    return [] if place is None else [(place, False)]


def _pieces(base: BaseWeights) -> dict[str, list[tuple[Place, bool]]]:
    """ComfyUI's name of a tensor to where its parts lie in a base of Diffusers' naming."""
    found: dict[str, list[tuple[int, Place, bool]]] = {}
    for name in base.names:
        place = base.place(name)
        try:
            origin = base.family.file.origin(name, True)
        except ValueError:
            continue
        if place is not None:
            found.setdefault(origin.name, []).append((origin.part, place, origin.swapped))
    return {
        native: [(place, swapped) for _, place, swapped in sorted(parts, key=lambda p: p[0])]
        for native, parts in found.items()
    }


def _check(base: BaseWeights, title: str, shape: tuple[int, ...], places: list[Place]) -> None:
    if not places:
        raise AdapterError(
            f"the adapter's {title} is not in {base.path}",
            f"a {base.family.title} base with every tensor that the adapter changes",
            "Choose the base that the adapter was trained on.",
        )
    wanted = (sum(place.shape[0] for place in places), *places[0].shape[1:])
    if shape != wanted:
        raise AdapterError(
            f"the adapter's {title} is {shape}",
            f"{wanted}, as in {base.path}",
            "Choose the base that the adapter was trained on.",
        )


__all__ = ["extra_changes"]
