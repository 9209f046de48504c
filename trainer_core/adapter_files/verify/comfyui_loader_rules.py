"""Which tensors of an adapter file ComfyUI takes, what it takes them for, and computes with them.

ComfyUI goes through its table of names and looks what the file has behind each; what it does not
find there stays unread, and it only says so in its log. Where a patch has no fault by these rules,
ComfyUI adds `comfyui_scale` times the product of the factors as `as_matrices` writes them, and
with a DoRA magnitude it stretches columns as `dora_magnitude` says.

Source: ComfyUI 0.33, ``comfy/lora.py`` (`load_lora`, `calculate_weight`) and
``comfy/weight_adapter``; the rules are tested against them.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from ...adapters.kinds.file_rules import SKIPS, STOPS, Fault, Shape
from ...adapters.kinds.registry import FILE_RULES
from ..names.key_layouts import with_comfyui_spelling
from ..names.key_map import ComfyuiPlace, bias_of

_GLORA = (".a1.weight", ".a2.weight", ".b1.weight", ".b2.weight")
_GLORA_KIND = "glora"
_SHARED = (".alpha", ".dora_scale")
_DIFFERENCES = ((".w_norm", "diff"), (".diff", "diff"), (".set_weight", "set"))
_BIASES = (".b_norm", ".diff_b")
_ENDINGS = (
    *(ending for rules in FILE_RULES.values() for ending in rules.comfyui_endings),
    *(*_GLORA, *_SHARED, *_BIASES),
    *(ending for ending, _ in _DIFFERENCES),
)
_TEXT_ENCODER = re.compile(r"(lora_te\d?_|lora_prior_te_|lycoris_te|text_encoders?(_\d)?\.|clip_)")
_PEFT_PREFIX = "base_model.model."
_PEFT_MAGNITUDE = (".lora_magnitude_vector", ".lora_magnitude_vector.weight")


@dataclass(frozen=True, slots=True)
class ComfyuiPatch:
    """What ComfyUI adds to one weight, or to some rows of one, because of a file.

    Attributes:
        name: What the keys have in common.
        place: What is changed.
        kind: One of the trainer's kinds, ``diff``, ``set``, or a kind that only ComfyUI knows:
            ``glora``.
        keys: Factor (``lora_up``, ..., ``alpha``, ``dora_scale``, ``diff``) to the file's key.
    """

    name: str
    place: ComfyuiPlace
    kind: str
    keys: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class ComfyuiPlan:
    """What ComfyUI makes of the keys of a file.

    Attributes:
        patches: What it builds.
        ignored: Every other key, to the reason.
    """

    patches: tuple[ComfyuiPatch, ...]
    ignored: Mapping[str, str]


@dataclass(slots=True)
class _Planner:
    """Patches by place while they are found; a later one takes the place of an earlier."""

    patches: dict[ComfyuiPlace, ComfyuiPatch] = field(default_factory=dict)
    ignored: dict[str, str] = field(default_factory=dict)

    def add(self, patch: ComfyuiPatch) -> None:
        older = self.patches.pop(patch.place, None)
        if older is not None:
            taken = next(iter(patch.keys.values()))
            for key in older.keys.values():
                self.ignored[key] = f"ComfyUI takes {taken} for the same layer instead"
        self.patches[patch.place] = patch


_OF_XLABS = (
    "single_blocks.37.processor.qkv_lora.up.weight",
    "double_blocks.18.processor.qkv_lora2.up.weight",
)
"""Keys by which ComfyUI knows XLabs' names, which it reads in a file of all blocks alone."""

_XLABS_NAMES = {
    ".down.weight": ".lora_down.weight",
    ".up.weight": ".lora_up.weight",
    ".qkv_lora2.": ".txt_attn.qkv.",
    ".qkv_lora1.": ".img_attn.qkv.",
    ".proj_lora1.": ".img_attn.proj.",
    ".proj_lora2.": ".txt_attn.proj.",
    ".qkv_lora.": ".linear1_qkv.",
    ".proj_lora.": ".linear2.",
    ".processor.": ".",
}
"""What ComfyUI puts for what in such a file (``comfy/lora_convert.py``)."""


def _renamed(keys: Iterable[str]) -> dict[str, str]:
    """A file's keys to the names that ComfyUI gives them before it reads."""
    names = with_comfyui_spelling(keys)
    if all(mark in names for mark in _OF_XLABS):
        for key, name in names.items():
            for old, new in _XLABS_NAMES.items():
                name = name.replace(old, new)
            names[key] = f"diffusion_model.{name}"
    return names


def plan_reading(keys: Iterable[str], table: Mapping[str, ComfyuiPlace]) -> ComfyuiPlan:
    """Find what ComfyUI builds from a file's keys, by its table of names (`comfyui_table`).

    Every key is in a patch or among those that are ignored, and in one only.
    """
    planner = _Planner()
    found: dict[str, dict[str, str]] = {}
    for key, spelt in _renamed(keys).items():
        name, ending = _split(spelt, table)
        if ending is None:
            planner.ignored[key] = _unknown(key)
        else:
            found.setdefault(name, {})[ending] = key
    for name, place in table.items():
        if name in found:
            _read_layer(planner, name, place, found[name])
    return ComfyuiPlan(tuple(planner.patches.values()), planner.ignored)


def _split(key: str, table: Mapping[str, ComfyuiPlace]) -> tuple[str, str | None]:
    for ending in _ENDINGS:
        if key.endswith(ending) and key[: -len(ending)] in table:
            return key[: -len(ending)], ending
    return key, None


def _unknown(key: str) -> str:
    if _TEXT_ENCODER.match(key):
        return "it is for a text encoder, and only the denoiser is looked at"
    if key.startswith(_PEFT_PREFIX):
        return f"ComfyUI does not know names that begin with {_PEFT_PREFIX}"
    if key.endswith(_PEFT_MAGNITUDE):
        return "ComfyUI does not read PEFT's name for DoRA's magnitude"
    if key.endswith(_ENDINGS):
        return "ComfyUI knows no layer of this name in this base"
    return "ComfyUI knows no tensor of this name"


def _read_layer(planner: _Planner, name: str, place: ComfyuiPlace, found: dict[str, str]) -> None:
    """Build what ComfyUI builds from all keys with one name."""
    rest = dict(found)
    shared = {ending[1:]: rest[ending] for ending in _SHARED if ending in rest}
    for kind, slots in _adapters(found):
        keys = {slot: found[ending] for slot, ending in slots.items() if ending in found}
        planner.add(ComfyuiPatch(name, place, kind, {**keys, **shared}))
        for key in (*keys.values(), *shared.values()):
            planner.ignored.pop(key, None)
        for ending in (*slots.values(), *_SHARED):
            rest.pop(ending, None)
    for ending, kind in _DIFFERENCES:
        if ending in rest:
            planner.add(ComfyuiPatch(name, place, kind, {"diff": rest.pop(ending)}))
    has_norm = ".w_norm" in found
    for ending in _BIASES:
        if ending in rest and (ending != ".b_norm" or has_norm):
            _read_bias(planner, name, place, rest.pop(ending))
    for key in rest.values():
        planner.ignored[key] = "ComfyUI reads it only beside other tensors, which are missing"


def _adapters(found: Mapping[str, str]) -> list[tuple[str, dict[str, str]]]:
    """Kind and factor to ending for each adapter of a layer, in ComfyUI's order."""
    adapters = [(kind, rules.comfyui_slots(found)) for kind, rules in FILE_RULES.items()]
    adapters = [(kind, slots) for kind, slots in adapters if slots]
    if _GLORA[0] in found:
        adapters.append((_GLORA_KIND, {ending[1:]: ending for ending in _GLORA}))
    return adapters


def _read_bias(planner: _Planner, name: str, place: ComfyuiPlace, key: str) -> None:
    if place.rows is not None or place.swapped:
        planner.ignored[key] = "ComfyUI drops the bias of a layer that is fused or swapped there"
        return
    planner.add(ComfyuiPatch(name, ComfyuiPlace(bias_of(place.tensor)), "diff", {"diff": key}))


def comfyui_scale(patch: ComfyuiPatch, shapes: Mapping[str, Shape], alpha: float | None) -> float:
    """The number by which ComfyUI multiplies the factors' product, of a patch without a fault.

    The patch is of a kind that the trainer has, and the shapes are by the file's keys. An alpha of
    None is none.
    """
    rank = FILE_RULES[patch.kind].comfyui_rank({s: shapes[key] for s, key in patch.keys.items()})
    return 1.0 if alpha is None or rank is None else alpha / rank


def find_fault(patch: ComfyuiPatch, shapes: Mapping[str, Shape], target: Shape) -> Fault | None:
    """See whether ComfyUI computes with a patch what its factors stand for.

    `shapes` are those of the file's keys, `target` that of what the patch changes.
    """
    outlines = {slot: shapes[key] for slot, key in patch.keys.items()}
    if "alpha" in outlines and math.prod(outlines["alpha"]) != 1:
        return Fault("read wrongly", f"{STOPS}: alpha has more than one value")
    if patch.kind in ("diff", "set"):
        return _difference_fault(patch.kind, outlines["diff"], target)
    if patch.kind == _GLORA_KIND:
        return _glora_fault(outlines, target)
    rules = FILE_RULES.get(patch.kind)
    if rules is None or "reshape_weight" in outlines:
        return None  # what no file of ours has; nothing is known of it here
    fault = rules.comfyui_fault(outlines)
    if fault is None:
        made = rules.comfyui_sizes(outlines)
        if rules.multiplies:
            made = made[0], math.prod(target[1:])
        fault = _size_fault(made, target)
    if fault is None and "dora_scale" in outlines:
        fault = _magnitude_fault(outlines["dora_scale"], target)
    return fault


def _glora_fault(shapes: Mapping[str, Shape], target: Shape) -> Fault | None:
    """GLoRA's ``W' = W + W A + B``, in both orders of its factors."""
    names = [ending[1:] for ending in _GLORA]
    if any(len(shapes.get(name, ())) < 2 for name in names):
        return Fault("read wrongly", f"{STOPS}: a GLoRA without four matrices")
    a1, a2, b1, b2 = ((shapes[name][0], math.prod(shapes[name][1:])) for name in names)
    rows, columns = target[0], math.prod(target[1:])
    for first, second, left, right in ((a1, a2, b1, b2), (a2, a1, b2, b1)):
        ranks = first[1] == second[0] and left[1] == right[0]
        ends = (first[0], second[1], left[0], right[1])
        if ranks and ends == (target[1], target[1], rows, columns):
            return None
    return Fault("wrong shape", f"a GLoRA of other sizes than {list(target)}: {SKIPS}")


def _difference_fault(kind: str, shape: Shape, target: Shape) -> Fault | None:
    if shape == target:
        return None
    what = STOPS if kind == "set" else "ComfyUI leaves it out and says so in its log"
    return Fault("wrong shape", f"it is {list(shape)} for a tensor of {list(target)}: {what}")


def _size_fault(made: Shape, target: Shape) -> Fault | None:
    wanted = (target[0], math.prod(target[1:]))
    if made == wanted and len(target) > 1:
        return None
    same = math.prod(made) == math.prod(wanted)
    what = "ComfyUI fills it in another order" if same else SKIPS
    return Fault("wrong shape", f"it makes {list(made)} for a layer of {list(wanted)}: {what}")


def _magnitude_fault(magnitude: Shape, target: Shape) -> Fault | None:
    """DoRA's magnitude: ComfyUI looks at the first axis alone to tell rows from columns."""
    rows, columns, *window = target
    if magnitude and magnitude[0] == rows and not (len(magnitude) == 1 and rows == columns == 1):
        if len(magnitude) == 1:
            what = "ComfyUI stretches columns by them" if len(set(target)) == 1 else SKIPS
            return Fault("read wrongly", f"a magnitude with one axis, taken for rows: {what}")
        reason = (
            "ComfyUI up to 0.33 divides a magnitude of rows by the norm of the base's weight alone"
        )
        return Fault("read wrongly", reason)
    ones = (1,) * len(window)
    if magnitude == (1, columns, *ones) or (magnitude == (columns,) and not window):
        return None
    return Fault(
        "wrong shape", f"a magnitude of {list(magnitude)} for a layer of {list(target)}: {SKIPS}"
    )
