"""Weights that a file has packed (GGUF, ComfyUI): their parts, shapes, and whether these fit.

Beside ``<layer>.weight`` ComfyUI's files have ``<layer>.weight_scale`` and the like. What a layer
is packed as stands in a note, see `header`. In a GGUF file a weight is one tensor.

Source: ComfyUI, ``comfy/ops.py`` (`_load_quantized_module`).
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from ..quantization.block_scaled import Mxfp8, Nvfp4, tiled_count
from ..quantization.file_format import FileFormat
from ..quantization.gguf_blocks import GGUF_FORMATS
from ..quantization.rotated_integers import AsymW4A8, ConvRotW4A4, Int8Tensorwise, is_rotation
from ..tensors.safetensors_writer import TensorInfo


@dataclass(frozen=True, slots=True)
class PackedWeight:
    """A weight that is packed in a file.

    Attributes:
        parts: Name of each part to where it lies, in the number format that it is read in.
        beside: The parts' names in the file, but for the weight itself.
        weight: What it is as a weight: its code is the format's name, its shape ``(out, in)``.
    """

    stored: FileFormat
    parts: Mapping[str, TensorInfo]
    beside: frozenset[str]
    weight: TensorInfo


class UnfitPartsError(Exception):
    """A packed weight that cannot be read.

    Attributes:
        found: What is wrong with it.
        expected: What it should be.
    """

    def __init__(self, found: str, expected: str) -> None:
        super().__init__(found, expected)
        self.found, self.expected = found, expected


def gguf_weights(tensors: Mapping[str, TensorInfo]) -> dict[str, PackedWeight]:
    """The packed weights among the tensors of a GGUF file.

    Raises:
        UnfitPartsError: When something else than a matrix is packed.
    """
    found: dict[str, PackedWeight] = {}
    for name, info in tensors.items():
        stored = GGUF_FORMATS.get(info.code)
        if stored is None:
            continue
        if len(info.shape) != 2:
            shape = list(info.shape)
            raise UnfitPartsError(f"{name} of the shape {shape} is {info.code}", "a matrix")
        rows, width = info.shape
        size = width // stored.block * stored.size
        part = dataclasses.replace(info, code="U8", shape=(rows, size))
        found[name] = PackedWeight(stored, {"weight": part}, frozenset(), info)
    return found


@dataclass(frozen=True, slots=True)
class _Part:
    """What a part has to be.

    Attributes:
        codes: Number formats that it may have in the file; as the first one it is read, unless it
            is a floating-point number of 16 or 32 bits.
        counts: How many values it may have.
        optional: Whether it may be absent.
    """

    codes: tuple[str, ...]
    counts: tuple[int, ...]
    optional: bool = False


_FLOATS = ("F32", "F16", "BF16")
_Plan = tuple[FileFormat, tuple[int, int], Mapping[str, _Part]]
"""The format, the weight's own shape, and what belongs to it beside ``weight``."""


def _nvfp4(rows: int, width: int, note: Mapping[str, Any]) -> _Plan:
    shape = (rows, 2 * width)
    scales = tiled_count(rows, shape[1] // Nvfp4.run)
    return (
        Nvfp4(),
        shape,
        {
            "weight_scale": _Part(("F8_E4M3", "U8"), (scales,)),
            "weight_scale_2": _Part(("F32",), (1,)),
        },
    )


def _mxfp8(rows: int, width: int, note: Mapping[str, Any]) -> _Plan:
    scales = tiled_count(rows, width // Mxfp8.run)
    return Mxfp8(), (rows, width), {"weight_scale": _Part(("U8", "F8_E8M0"), (scales,))}


def _int8(rows: int, width: int, note: Mapping[str, Any]) -> _Plan:
    group = _count(note, "convrot_groupsize", 256) if _setting(note, "convrot", False) else 0
    if group:
        _check_rotation(group, width)
    return Int8Tensorwise(group), (rows, width), {"weight_scale": _Part(_FLOATS, (1, rows))}


def _w4a4(rows: int, width: int, note: Mapping[str, Any]) -> _Plan:
    group = _count(note, "convrot_groupsize", 256)
    _check_rotation(group, 2 * width)
    return ConvRotW4A4(group), (rows, 2 * width), {"weight_scale": _Part(_FLOATS, (rows,))}


def _w4a8(rows: int, width: int, note: Mapping[str, Any]) -> _Plan:
    run, group = _count(note, "group_size", 16), _count(note, "convrot_groupsize", 256)
    _check_rotation(group, 2 * width)
    if 2 * width % run:
        raise UnfitPartsError(f"{2 * width} columns in groups of {run}", "groups that divide them")
    return (
        AsymW4A8(run, group),
        (rows, 2 * width),
        {
            "weight_s_rel": _Part(("F8_E4M3", "U8", "F32"), (rows * (2 * width // run),)),
            "weight_s_channel": _Part(("F32",), (rows,)),
            "weight_codebook": _Part(("F32",), (16,), optional=True),
        },
    )


_Planner = Callable[[int, int, Mapping[str, Any]], _Plan]
_PLANS: dict[str, tuple[tuple[str, ...], _Planner]] = {
    "nvfp4": (("U8",), _nvfp4),
    "mxfp8": (("F8_E4M3",), _mxfp8),
    "int8_tensorwise": (("I8",), _int8),
    "convrot_w4a4": (("I8",), _w4a4),
    "asym_w4a8_int8": (("I8",), _w4a8),
}
"""A format's name in a note to the number format of ``weight`` in the file, and what it is."""


def comfyui_weights(
    tensors: Mapping[str, TensorInfo], notes: Mapping[str, Any]
) -> dict[str, PackedWeight]:
    """The packed weights of a file whose layers are noted in ComfyUI's way.

    Args:
        notes: Layer to what is noted of it. Of other formats than these nothing is said.

    Raises:
        UnfitPartsError: When a part is missing or not what its format needs.
    """
    found: dict[str, PackedWeight] = {}
    for layer, note in notes.items():
        kind = note.get("format") if isinstance(note, dict) else None
        if isinstance(kind, str) and kind in _PLANS:
            found[f"{layer}.weight"] = _packed(tensors, layer, kind, note)
    return found


def _packed(
    tensors: Mapping[str, TensorInfo], layer: str, kind: str, note: Mapping[str, Any]
) -> PackedWeight:
    codes, planner = _PLANS[kind]
    name = f"{layer}.weight"
    info = tensors.get(name)
    if info is None:
        raise UnfitPartsError(f"there is no {name}", "a weight beside every note")
    if info.code not in codes or len(info.shape) != 2:
        found = f"{name} is noted as {kind}, but stored as {info.code} {list(info.shape)}"
        raise UnfitPartsError(found, f"a matrix in {codes[0]}")
    try:
        stored, shape, wanted = planner(*info.shape, note)
    except UnfitPartsError as error:
        raise UnfitPartsError(f"{name} has {error.found}", error.expected) from error
    if not stored.fits(shape):
        raise UnfitPartsError(f"{name} has the shape {list(shape)}", f"one that fits {kind}")
    parts = {"weight": info}
    for part, what in wanted.items():
        placed = _part(tensors, f"{layer}.{part}", what)
        if placed is not None:
            parts[part] = placed
    if isinstance(stored, AsymW4A8):
        size = 4 if parts["weight_s_rel"].code == "F32" else 1
        stored = dataclasses.replace(stored, codebook="weight_codebook" in parts, scale_bytes=size)
    beside = frozenset(f"{layer}.{part}" for part in parts if part != "weight")
    weight = dataclasses.replace(info, code=kind, shape=shape)
    return PackedWeight(stored, parts, beside, weight)


def _part(tensors: Mapping[str, TensorInfo], name: str, what: _Part) -> TensorInfo | None:
    info = tensors.get(name)
    if info is None:
        if what.optional:
            return None
        raise UnfitPartsError(f"there is no {name}", "every scale of a quantized weight")
    count = math.prod(info.shape)
    sized = info.code != "F8_E8M0" or info.size == count  # a format that torch's reader lacks
    if info.code not in what.codes or count not in what.counts or not sized:
        raise UnfitPartsError(
            f"{name} is stored as {info.code} {list(info.shape)}",
            f"{' or '.join(map(str, what.counts))} values in {' or '.join(what.codes)}",
        )
    return info if info.code in _FLOATS else dataclasses.replace(info, code=what.codes[0])


def _setting(note: Mapping[str, Any], key: str, default: Any) -> Any:
    below = note.get("params")
    inner = below.get(key, default) if isinstance(below, dict) else default
    return note.get(key, inner)


def _count(note: Mapping[str, Any], key: str, default: int) -> int:
    value = _setting(note, key, default)
    if type(value) is not int or value < 1:
        raise UnfitPartsError(f"{key} {str(value)[:100]}", "a whole number of numbers")
    return value


def _check_rotation(group: int, width: int) -> None:
    if not is_rotation(group, width):
        raise UnfitPartsError(
            f"{width} columns that were rotated in groups of {group}",
            "groups of a power of four that divides them",
        )
