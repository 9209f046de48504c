"""What ComfyUI computes with the tensors it takes: the scale, and where it goes wrong.

Where a patch has no fault by these rules, ComfyUI adds ``host_scale`` times the product of the
factors as `as_matrices` writes them, and with lengths it stretches columns as `magnitude` says.

Source: ComfyUI 0.33, ``comfy/weight_adapter`` and ``comfy/lora.py`` (`calculate_weight`); the
rules are tested against both.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from .comfyui_reading import HostPatch

Shape = tuple[int, ...]
Outcome = Literal["loaded", "ignored", "wrong shape", "read wrongly"]

_STOPS = "ComfyUI stops with an error"
_SKIPS = "ComfyUI writes an error into its log and leaves the layer as it is"
_PLANE = 4
"""Axes of a weight with a window of two, the only one that ComfyUI multiplies cores for."""


@dataclass(frozen=True, slots=True)
class Fault:
    """Why ComfyUI does not compute with a patch what its factors stand for.

    Attributes:
        outcome: ``wrong shape`` or ``read wrongly``.
        reason: What it does instead.
    """

    outcome: Outcome
    reason: str


def host_scale(patch: HostPatch, shapes: Mapping[str, Shape], alpha: float | None) -> float:
    """The number by which ComfyUI multiplies the factors' product.

    Args:
        patch: A patch of kind ``lora``, ``loha`` or ``lokr`` without a fault.
        shapes: The file's key to the tensor's shape.
        alpha: The value of its alpha; None when it has none.
    """
    rank = _divisor(patch, shapes)
    return 1.0 if alpha is None or rank is None else alpha / rank


def find_fault(patch: HostPatch, shapes: Mapping[str, Shape], target: Shape) -> Fault | None:
    """See whether ComfyUI computes with a patch what its factors stand for.

    Args:
        patch: Any patch.
        shapes: The file's key to the tensor's shape.
        target: Shape of what the patch changes.

    Returns:
        What is wrong; None when nothing is.
    """
    given = {slot: shapes[key] for slot, key in patch.keys.items()}
    if "alpha" in given and math.prod(given["alpha"]) != 1:
        return Fault("read wrongly", f"{_STOPS}: alpha has more than one value")
    if patch.kind in ("glora", "oft") or "reshape_weight" in given:
        return None  # what no file of ours has; nothing is known of it here
    if patch.kind in ("diff", "set"):
        return _difference_fault(patch.kind, given["diff"], target)
    fault = {"lora": _lora_fault, "loha": _loha_fault, "lokr": _lokr_fault}[patch.kind](given)
    if fault is None:
        fault = _size_fault(_made(patch.kind, given), target)
    if fault is None and "dora_scale" in given:
        fault = _lengths_fault(given["dora_scale"], target)
    return fault


def _divisor(patch: HostPatch, shapes: Mapping[str, Shape]) -> int | None:
    own = {"lora": ("lora_down",), "loha": ("hada_w1_b",), "lokr": ("lokr_w2_b", "lokr_w1_b")}
    whole = {"lokr_w2_b": "lokr_w2", "lokr_w1_b": "lokr_w1"}
    for factor in own[patch.kind]:
        # Beside a whole factor ComfyUI passes over its two halves.
        if factor in patch.keys and whole.get(factor) not in patch.keys:
            return shapes[patch.keys[factor]][0]
    return None


def _difference_fault(kind: str, given: Shape, target: Shape) -> Fault | None:
    if given == target:
        return None
    what = _STOPS if kind == "set" else "ComfyUI leaves it out and says so in its log"
    return Fault("wrong shape", f"it is {list(given)} for a tensor of {list(target)}: {what}")


def _lora_fault(given: Mapping[str, Shape]) -> Fault | None:
    if "lora_down" not in given:
        return Fault("read wrongly", f"{_STOPS}: there is no lora_down beside lora_up")
    up, down, core = given["lora_up"], given["lora_down"], given.get("lora_mid")
    if min(len(up), len(down)) < 2:
        return Fault("wrong shape", f"a factor has one axis: {_SKIPS}")
    if core is not None:
        if len(core) < _PLANE or math.prod(core[_PLANE:]) != 1:
            return Fault("read wrongly", f"{_STOPS}: it knows cores with two axes only")
        if not core[0] == core[1] == down[0] * math.prod(down[2:]):
            return Fault("wrong shape", f"core {list(core)} and lora_down differ in rank: {_STOPS}")
    if math.prod(up[1:]) != down[0]:
        return _ranks(up, down)
    return None


def _loha_fault(given: Mapping[str, Shape]) -> Fault | None:
    names = ("hada_w1_b", "hada_w2_a", "hada_w2_b", *(["hada_t2"] if "hada_t1" in given else []))
    missing = next((name for name in names if name not in given), None)
    if missing is not None:
        return Fault("read wrongly", f"{_STOPS}: there is no {missing}")
    for half in ("1", "2"):
        up, down, core = (
            given[f"hada_w{half}_a"],
            given[f"hada_w{half}_b"],
            given.get(f"hada_t{half}"),
        )
        if len(up) != 2 or len(down) != 2:
            return Fault("read wrongly", f"{_STOPS}: hada_w{half}_a and _b are no matrices")
        if core is None:
            if up[1] != down[0]:
                return _ranks(up, down, _STOPS)
        elif len(core) != _PLANE:
            return Fault("read wrongly", f"{_STOPS}: it knows cores with two axes only")
        elif (core[0], core[1]) != (up[0], down[0]):
            return _ranks(up, down, _STOPS)
    if _half(given, "1") != _half(given, "2"):
        return Fault("wrong shape", f"the two halves of the LoHa differ in size: {_SKIPS}")
    return None


def _lokr_fault(given: Mapping[str, Shape]) -> Fault | None:
    for name in ("lokr_w1", "lokr_w2"):
        if name in given:
            continue
        up, down = given.get(f"{name}_a"), given.get(f"{name}_b")
        if up is None or down is None:
            return Fault("read wrongly", f"{_STOPS}: there is no {name}, and not both of its parts")
        if name == "lokr_w2" and "lokr_t2" in given:
            # The product of core and factors has strides that torch.kron refuses.
            stops = len(given["lokr_t2"]) != _PLANE
            return Fault("read wrongly", f"a LoKr with a core: {_STOPS if stops else _SKIPS}")
        if len(up) != 2 or len(down) != 2:
            return Fault("read wrongly", f"{_STOPS}: {name}_a and _b are no matrices")
        if up[1] != down[0]:
            return _ranks(up, down, _STOPS)
    if (
        len(given.get("lokr_w2", (0, 0))) not in (2, _PLANE)
        or len(given.get("lokr_w1", (0, 0))) != 2
    ):
        reason = "ComfyUI takes the window of lokr_w2 for something else unless it has two axes"
        return Fault("read wrongly", reason)
    return None


def _ranks(up: Shape, down: Shape, what: str = _SKIPS) -> Fault:
    return Fault("wrong shape", f"factors of {list(up)} and {list(down)} differ in rank: {what}")


def _half(given: Mapping[str, Shape], half: str) -> Shape:
    """Shape of one of a LoHa's two products."""
    up, down = given[f"hada_w{half}_a"], given[f"hada_w{half}_b"]
    core = given.get(f"hada_t{half}")
    return (up[0], down[1]) if core is None else (up[1], down[1], *core[2:])


def _made(kind: str, given: Mapping[str, Shape]) -> Shape:
    """Rows and columns of what the factors make."""
    if kind == "lora":
        core = given.get("lora_mid", ())
        return given["lora_up"][0], math.prod(given["lora_down"][1:]) * math.prod(core[2:])
    if kind == "loha":
        rows, *columns = _half(given, "1")
        return rows, math.prod(columns)
    first, second = (
        given.get(name) or (given[f"{name}_a"][0], given[f"{name}_b"][1])
        for name in ("lokr_w1", "lokr_w2")
    )
    return first[0] * second[0], first[1] * math.prod(second[1:])


def _size_fault(made: Shape, target: Shape) -> Fault | None:
    wanted = (target[0], math.prod(target[1:]))
    if made == wanted and len(target) > 1:
        return None
    same = math.prod(made) == math.prod(wanted)
    what = "ComfyUI fills it in another order" if same else _SKIPS
    return Fault("wrong shape", f"it makes {list(made)} for a layer of {list(wanted)}: {what}")


def _lengths_fault(lengths: Shape, target: Shape) -> Fault | None:
    """DoRA's lengths: ComfyUI looks at the first axis alone to tell rows from columns."""
    rows, columns, *window = target
    if lengths and lengths[0] == rows and not (len(lengths) == 1 and rows == columns == 1):
        if len(lengths) == 1:
            return Fault(
                "read wrongly", f"lengths with one axis, taken for rows: {_one_axis(target)}"
            )
        reason = "ComfyUI up to 0.33 divides lengths of rows by the norm of the base's weight alone"
        return Fault("read wrongly", reason)
    ones = (1,) * len(window)
    if lengths == (1, columns, *ones) or (lengths == (columns,) and not window):
        return None
    return Fault(
        "wrong shape", f"lengths of {list(lengths)} for a layer of {list(target)}: {_SKIPS}"
    )


def _one_axis(target: Shape) -> str:
    if len(set(target)) == 1:
        return "ComfyUI stretches columns by them"
    return _SKIPS
