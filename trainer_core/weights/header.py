"""The header of a file of weights: names, shapes, number formats, and why it cannot be a base.

ComfyUI has two spellings of 8-bit weights with one scale for each layer. The old one has a tensor
named ``scaled_fp8`` in the file and ``<layer>.scale_weight``. The new one has
``<layer>.weight_scale`` and, for each layer, a ``<layer>.comfy_quant`` tensor with JSON, or all of
these together in the header as ``_quantization_metadata``. Scales of a layer's input concern its
arithmetic, not its weights. In the new spelling there are other formats too, see `packed_weights`.

Source: ComfyUI, ``QUANTIZATION.md``, ``comfy/utils.py`` (`convert_old_quants`), ``comfy/ops.py``.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..config.base_path import FILE_SUFFIXES, GGUF_SUFFIX
from ..errors import BaseModelError
from ..filesystem.text_files import parse_json, require_regular
from ..tensors.gguf_reader import read_gguf_header
from ..tensors.safetensors_reader import Wording, open_tensors
from ..tensors.safetensors_writer import TensorInfo
from .packed_weights import PackedWeight, UnfitPartsError, comfyui_weights, gguf_weights

# ComfyUI's names of the denoiser inside a file; the first that occurs is taken.
_PREFIXES = ("model.diffusion_model.", "diffusion_model.")
_ADAPTER = re.compile(
    r"[._](lora_(up|down|mid|A|B)\b|hada_(w[12]|t[12])|lokr_(w[12]|t2)|oft_blocks|dora_scale|diff(_b)?$)"
    r"|\.alpha$|lora_unet_"
)
_PACKED = {
    re.compile(r"\.(qweight|wscales|wzeros|qzeros)$"): "SVDQuant (nunchaku)",
    re.compile(r"\.(absmax|quant_map|nested_absmax)$|\.quant_state\."): "bitsandbytes (nf4)",
}
READABLE = (
    "a .safetensors file in bf16, fp16, fp32, fp8_e4m3fn, fp8_scaled, nvfp4, mxfp8, "
    "int8_tensorwise, convrot_w4a4 or asym_w4a8_int8, or a .gguf file (Q2_K to Q8_0)"
)
OTHER_FILE = "Use the bf16 or the fp8_scaled file of the same model instead."


_BASE = Wording(
    BaseModelError,
    "base.path: ",
    "a readable file",
    whole=READABLE,
    instead="Download the model's .safetensors file.",
    again="Download or copy the file again; compare its size with the one at the source.",
)


@dataclass(frozen=True, slots=True)
class WeightFile:
    """The denoiser's part of a file; no weight has been read.

    Attributes:
        prefix: What stands before the denoiser's names in the file; often empty.
        tensors: Name without prefix to the tensor.
        metadata: The header's strings.
        packed: Name of a weight that is packed to its parts; in ``tensors`` it has its own shape.
    """

    path: Path
    prefix: str
    tensors: Mapping[str, TensorInfo]
    metadata: Mapping[str, str]
    packed: Mapping[str, PackedWeight] = dataclasses.field(default_factory=dict)

    @property
    def hints(self) -> str:
        """What the file's name and title say of the model, in lower case."""
        keys = ("modelspec.title", "modelspec.architecture", "general.name")
        titles = [self.metadata.get(key, "") for key in keys]
        return " ".join([self.path.stem, *titles]).lower()

    def matrix(self, name: str) -> tuple[int, int]:
        """Rows and columns of a weight.

        Raises:
            BaseModelError: When the file lacks it, or it is not a matrix.
        """
        shape = self._shape(name)
        if len(shape) != 2:
            raise self.broken(f"{name} has the shape {list(shape)}", "a matrix")
        return shape[0], shape[1]

    def length(self, name: str) -> int:
        """Number of values of a vector.

        Raises:
            BaseModelError: When the file lacks it, or it is not a vector.
        """
        shape = self._shape(name)
        if len(shape) != 1:
            raise self.broken(f"{name} has the shape {list(shape)}", "a vector")
        return shape[0]

    def count(self, blocks: str) -> int:
        """Number of different blocks below ``<blocks>.``; at most as many as there are tensors."""
        start = f"{blocks}."
        names = (name[len(start) :] for name in self.tensors if name.startswith(start))
        return len({name.split(".", 1)[0] for name in names})

    def broken(self, found: str, expected: str, remedy: str | None = None) -> BaseModelError:
        """An error that names this file."""
        return BaseModelError(
            f"base.path: {self.path}: {found}",
            expected,
            remedy or "Download the file again, or name another one as base.path.",
        )

    def _shape(self, name: str) -> tuple[int, ...]:
        info = self.tensors.get(name)
        if info is None:
            raise self.broken(f"there is no {name}", "every weight of the denoiser")
        return info.shape


def open_weights(path: Path) -> WeightFile:
    """Read the header of a single file, and refuse what can never be a base.

    Returns:
        What the denoiser's part holds. A whole checkpoint's other parts are left out.

    Raises:
        BaseModelError: When the file is of another format, damaged, an adapter, or packed in a
            way that is not read here.
    """
    _refuse_other_endings(path)
    tensors, metadata = read_header(path)
    prefix = next((p for p in _PREFIXES if any(key.startswith(p) for key in tensors)), "")
    own = {
        key[len(prefix) :]: info
        for key, info in tensors.items()
        if key.startswith(prefix) and len(key) > len(prefix)
    }
    file = WeightFile(path, prefix, own, metadata)
    if not own:
        raise file.broken("it holds no tensor", READABLE)
    for pattern, packing in _PACKED.items():
        packed = next((name for name in own if pattern.search(name)), None)
        if packed is not None:
            raise file.broken(f"{packed} is packed as {packing}", READABLE, OTHER_FILE)
    adapter = next((name for name in own if _ADAPTER.search(name)), None)
    if adapter is not None:
        raise file.broken(
            f"it is an adapter (it has {prefix}{adapter})",
            "the weights of a base model",
            "Name the base that the adapter is for as base.path.",
        )
    return _with_packed(file)


def _with_packed(file: WeightFile) -> WeightFile:
    """Give the weights that are packed the shapes that they have as numbers."""
    try:
        if file.path.suffix.lower() == GGUF_SUFFIX:
            packed = gguf_weights(file.tensors)
        else:
            packed = comfyui_weights(file.tensors, {} if _is_old(file) else _notes(file))
    except UnfitPartsError as error:
        raise file.broken(error.found, error.expected, OTHER_FILE) from error
    if not packed:
        return file
    own = {name: each.weight for name, each in packed.items()}
    return dataclasses.replace(file, tensors={**file.tensors, **own}, packed=packed)


def _refuse_other_endings(path: Path) -> None:
    suffix = path.suffix.lower()
    if suffix in FILE_SUFFIXES:
        return
    raise BaseModelError(
        f"base.path: {path} is a file that ends in {suffix or 'nothing'}",
        "a .safetensors or .gguf file (other formats can run code and are not read), or a "
        "Diffusers folder",
        "Name the .safetensors file of the model, or the folder that holds model_index.json.",
    )


def read_header(path: Path) -> tuple[dict[str, TensorInfo], dict[str, str]]:
    """Every tensor's place in a file that exists, by its key, and the metadata.

    Raises:
        BaseModelError: When it is not a complete safetensors or GGUF file.
    """
    if path.suffix.lower() == GGUF_SUFFIX:
        return _read_gguf(path)
    with open_tensors(path, _BASE, any_format=True) as file:
        return dict(file.tensors), dict(file.metadata)


def _read_gguf(path: Path) -> tuple[dict[str, TensorInfo], dict[str, str]]:
    try:
        require_regular(path)
        return read_gguf_header(path)
    except OSError as error:
        raise _BASE.unreadable(path, error) from error
    except ValueError as error:  # UnicodeDecodeError among them
        raise BaseModelError(
            f"base.path: {path}: it is not a readable GGUF file ({str(error)[:500]})",
            "a whole GGUF file in F32, F16, BF16, Q8_0, Q6_K, Q5_K, Q5_1, Q5_0, Q4_K, Q4_1, Q4_0, "
            "Q3_K or Q2_K",
            "Download or copy the file again, or use one in these formats.",
        ) from error


_PLAIN = frozenset({"F64", "F32", "F16", "BF16", "F8_E4M3", "F8_E5M2"})
_STORED = {"float8_e4m3fn": "F8_E4M3", "float8_e5m2": "F8_E5M2"}
_MARKER = "scaled_fp8"
_QUANT = ".comfy_quant"
_METADATA = "_quantization_metadata"
_WEIGHT_SCALES = (".weight_scale", ".scale_weight")
_BESIDE = (*_WEIGHT_SCALES, ".input_scale", ".scale_input", _QUANT)
_LARGEST_NOTE = 1 << 16


@dataclass(frozen=True, slots=True)
class Formats:
    """How a file's weights become numbers.

    Attributes:
        scales: Name of a weight to the name of its scale; other weights are only cast.
        beside: Names that are not weights: scales, markers and notes.
    """

    scales: Mapping[str, str]
    beside: frozenset[str]


def check_formats(file: WeightFile) -> Formats:
    """Find the scales, and refuse what cannot be read.

    Args:
        file: An opened file. Only its notes on formats are read, no weight.

    Raises:
        BaseModelError: When a weight is in a format that is not read here, or a scale is missing
            or stands beside a weight that nothing says is scaled.
    """
    if _is_old(file):
        suffix = ".scale_weight"
        scaled = (name for name in file.tensors if name.endswith(suffix))
        layers = {name.removesuffix(suffix): "float8_e4m3fn" for name in scaled}
    else:
        layers, suffix = _noted_layers(file), ".weight_scale"
    scales: dict[str, str] = {}
    for layer, kind in layers.items():
        weight, scale = f"{layer}.weight", f"{layer}{suffix}"
        _check_layer(file, layer, kind, scale)
        scales[weight] = scale
    beside = {name for name in file.tensors if name == _MARKER or name.endswith(_BESIDE)}
    known = {*scales.values(), *(name for each in file.packed.values() for name in each.beside)}
    stray = sorted(name for name in beside - known if name.endswith(_WEIGHT_SCALES))
    beside |= known
    if stray:
        raise file.broken(
            f"{stray[0]} is a scale, but nothing in the file says what is scaled how",
            "a scaled_fp8 or comfy_quant note beside the scales; ComfyUI ignores them without it",
            OTHER_FILE,
        )
    for name, info in file.tensors.items():
        if name not in beside and name not in file.packed and info.code not in _PLAIN:
            raise file.broken(f"{name} is stored as {info.code}", READABLE, OTHER_FILE)
    return Formats(scales, frozenset(beside))


def _is_old(file: WeightFile) -> bool:
    """Whether a file has the old spelling, in which nothing is noted."""
    return _MARKER in file.tensors and _METADATA not in file.metadata


def _noted_layers(file: WeightFile) -> dict[str, str]:
    layers: dict[str, str] = {}
    for layer, note in _notes(file).items():
        if f"{layer}.weight" in file.packed:
            continue
        kind = note.get("format") if isinstance(note, dict) else None
        if kind not in tuple(_STORED):  # a list, as a hostile note may have, has no hash
            raise file.broken(f"{layer} is stored as {str(kind)[:100]}", READABLE, OTHER_FILE)
        layers[layer] = kind
    return layers


def _notes(file: WeightFile) -> dict[str, Any]:
    return {**_notes_beside(file), **_notes_in_header(file)}


def _notes_in_header(file: WeightFile) -> dict[str, Any]:
    text = file.metadata.get(_METADATA)
    if text is None:
        return {}
    noted = _parse(file, f"{_METADATA} in its header", text)
    layers = noted.get("layers")
    if not isinstance(layers, dict):
        raise file.broken(f"{_METADATA} in its header has no layers", READABLE, OTHER_FILE)
    # Layers of the other parts of a whole checkpoint are not ours.
    own = {name.removeprefix(file.prefix): note for name, note in layers.items()}
    return {name: note for name, note in own.items() if f"{name}.weight" in file.tensors}


def _notes_beside(file: WeightFile) -> dict[str, Any]:
    names = [name for name in file.tensors if name.endswith(_QUANT)]
    if not names:
        return {}
    notes: dict[str, Any] = {}
    with file.path.open("rb") as opened:
        for name in names:
            info = file.tensors[name]
            if info.code != "U8" or info.size > _LARGEST_NOTE:
                raise _unreadable_note(file, name)
            opened.seek(info.start)
            content = opened.read(info.size)
            notes[name.removesuffix(_QUANT)] = _parse(file, name, content)
    return notes


def _parse(file: WeightFile, name: str, text: str | bytes) -> dict[str, Any]:
    try:
        value = parse_json(text)
    except ValueError as error:
        raise _unreadable_note(file, name) from error
    if not isinstance(value, dict):
        raise _unreadable_note(file, name)
    return value


def _unreadable_note(file: WeightFile, name: str) -> BaseModelError:
    return file.broken(f"{name} cannot be read", "JSON that names a number format", OTHER_FILE)


def _check_layer(file: WeightFile, layer: str, kind: str, scale: str) -> None:
    weight = file.tensors.get(f"{layer}.weight")
    if weight is None:
        raise file.broken(f"there is no {layer}.weight", "a weight beside every scale")
    if weight.code != _STORED[kind]:
        raise file.broken(
            f"{layer}.weight is noted as {kind}, but stored as {weight.code}",
            f"{_STORED[kind]} in the file",
            OTHER_FILE,
        )
    info = file.tensors.get(scale)
    if info is None:
        raise file.broken(f"there is no {scale}", f"a scale beside {layer}.weight")
    single = all(side == 1 for side in info.shape)
    if not single and info.shape != (*weight.shape[:1], *(1,) * (len(weight.shape) - 1)):
        raise file.broken(
            f"{scale} has the shape {list(info.shape)} for a weight of {list(weight.shape)}",
            "one scale for the layer, or one for each row",
            OTHER_FILE,
        )
    if info.code not in {"F32", "F16", "BF16"}:
        raise file.broken(f"{scale} is stored as {info.code}", "a floating-point scale")
