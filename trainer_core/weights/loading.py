"""Loads the frozen models of a base: parts of a Diffusers folder, and denoisers of single files.

This is where the libraries' errors end. A single file becomes Diffusers' model one tensor at a
time.
"""

from __future__ import annotations

import ctypes
import importlib
import inspect
import itertools
import sys
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import torch
from torch import Tensor, nn

from ..errors import BaseModelError
from ..quantization.quantized_linear import QuantizedLinear
from ..quantization.stored_format import StoredFormat
from .base_location import BaseLocation
from .diffusers_folder import read_json, shard_files
from .file_spec import FileSpec, Origin
from .header import Formats, WeightFile, check_formats, open_weights
from .layer_packing import Packing
from .library_errors import reading_part, unreadable, without_bars
from .tensor_reader import TensorReader, ahead

Take = Callable[[str, nn.Module], None]
"""Told of a block that is complete: its name, and itself."""

# How each library calls the argument that gives the weights' precision.
_PRECISION = {"diffusers": "torch_dtype", "transformers": "dtype"}


def load_frozen(
    kind: str, folder: Path, part: str, dtype: torch.dtype, device: torch.device | str
) -> Any:
    """Load a model in evaluation mode and without gradients; never from the network.

    Args:
        kind: Library and class, such as ``diffusers.FluxTransformer2DModel``. The library is
            imported here, because that takes seconds.
        device: Where the model computes.

    Raises:
        BaseModelError: When the installed library does not know the class, or the files are damaged
            or lack weights.
    """
    library = kind.partition(".")[0]
    model = _class_of(kind, folder / part)
    with reading_part(folder / part), without_bars(library):
        loaded, report = model.from_pretrained(
            folder / part,
            use_safetensors=True,
            local_files_only=True,
            output_loading_info=True,
            **{_PRECISION[library]: dtype},
        )
    missing = sorted(report["missing_keys"])
    if missing:
        # A library fills such weights with random numbers and goes on.
        raise unreadable(folder / part, f"{len(missing)} weights are missing, {missing[0]} first")
    return loaded.requires_grad_(False).eval().to(device)


def _class_of(kind: str, needed_by: Path) -> Any:
    """A class by its library and name.

    Raises:
        BaseModelError: When the installed library is too old to have it.
    """
    library, name = kind.split(".")
    found = getattr(importlib.import_module(library), name, None)
    if found is None:
        raise BaseModelError(
            f"the installed {library} has no {name}, which {needed_by} needs",
            f"a newer {library}",
            f"Upgrade it: pip install --upgrade {library}",
        )
    return found


def load_words(kind: str, folder: Path, part: str) -> Any:
    """Load a tokenizer or a processor of images by its class in transformers, as `load_frozen`."""
    loader = getattr(importlib.import_module("transformers"), kind)
    with reading_part(folder / part):
        return loader.from_pretrained(folder / part, local_files_only=True)


_PACKED_BETWEEN = 1 << 25
"""Bytes that are packed before what was needed in between is given back."""

_NAMED = 3  # names that a message gives as examples


@dataclass(frozen=True, slots=True)
class _Cut:
    """Parts of the model that a tensor of the file holds, one after another.

    Attributes:
        targets: Their names in the model.
        rows: First row of each, and the one behind its last.
        swapped: Whether the two halves of the only part are in the opposite order in the file.
    """

    targets: tuple[str, ...]
    rows: tuple[tuple[int, int], ...]
    swapped: bool


@dataclass(frozen=True, slots=True)
class WeightPlan:
    """What is read from where.

    Attributes:
        model: Without memory.
        cuts: Each tensor of the files to what is cut from it.
        readers: Each tensor to the reader of its file.
        packing: What is kept in fewer bits.
    """

    model: Any
    cuts: Mapping[str, _Cut]
    readers: Mapping[str, TensorReader]
    packing: Packing | None

    def is_precise(self, target: str) -> bool:
        """Whether it belongs to a module that Diffusers keeps in float32."""
        kept = tuple(getattr(self.model, "_keep_in_fp32_modules", None) or ())
        return any(part in kept for part in target.split("."))

    def stored(self, name: str, index: int) -> StoredFormat | None:
        """How a part of a tensor of the files is kept; None where it is dense."""
        cut = self.cuts[name]
        target, (first, end) = cut.targets[index], cut.rows[index]
        if self.packing is None or cut.swapped or self.is_precise(target):
            return None
        layer = self.packing.layer(self.model, target)
        if layer is None:
            return None
        return self.packing.format_of(self.readers[name], name, (end - first, layer.in_features))


def load_file(
    location: BaseLocation,
    spec: FileSpec,
    dtype: torch.dtype,
    device: torch.device | str,
    packing: Packing | None = None,
    mapped: bool = False,
    take: Take | None = None,
) -> nn.Module:
    """Load the denoiser of a base that is a single file.

    The model is built without memory and its weights are put in one after another, so that no more
    than one tensor exists twice.

    Args:
        location: A base whose ``file`` is set.
        dtype: Of the weights; modules that Diffusers keeps in float32 stay so.
        packing: Which layers are kept in fewer bits; None keeps all weights dense.
        mapped: Whether weights that the file has in this format are left there (`TensorReader`).
        take: As of `Family.load_transformer`.

    Returns:
        Diffusers' model in evaluation mode, without gradients.

    Raises:
        BaseModelError: When the file does not hold exactly the weights of the family, or holds
            them in a format that is not read here.
    """
    plan = _plan_file(location, spec, torch.device(device), packing=packing, mapped=mapped)
    return _filled(plan, spec, dtype, take)


def load_packed(
    location: BaseLocation,
    spec: FileSpec,
    dtype: torch.dtype,
    device: torch.device | str,
    packing: Packing,
    take: Take | None = None,
) -> nn.Module:
    """As `load_file`, from a Diffusers folder, whose denoiser is nowhere dense as a whole.

    Raises:
        BaseModelError: When the files are damaged, lack weights or are quantized already.
    """
    with reading_part(location.denoiser):
        plan = _plan_folder(location, spec, torch.device(device), packing)
    # Outside: a GPU that stops, or RAM that is full, is no damage of the files.
    return _filled(plan, spec, dtype, take)


def _filled(plan: WeightPlan, spec: FileSpec, dtype: torch.dtype, take: Take | None) -> nn.Module:
    """Read the weights of a model that is on the meta device."""
    model = plan.model
    blocks = plan.packing.blocks if plan.packing and take else ()
    unread = Counter(_block_of(name, blocks) for cut in plan.cuts.values() for name in cut.targets)
    device = next(iter(plan.readers.values())).device
    packing_device = (plan.packing and plan.packing.device) or device
    packs_on_gpu = packing_device.type == "cuda"
    packed_bytes = 0
    for name in ahead(plan.cuts, plan.readers) if packs_on_gpu else plan.cuts:
        for index, target in enumerate(plan.cuts[name].targets):
            packed_bytes += _fill(plan, name, index, dtype)
            if packed_bytes > _PACKED_BETWEEN and packing_device.type == "cpu":
                _return_free_memory()
                packed_bytes = 0
            block = _block_of(target, blocks)
            unread[block] -= 1
            if take and block and not unread[block]:
                whole = model.get_submodule(block)
                if not _has_empty(whole):  # some of its tensors may be in no file
                    take(block, whole)
    spec.restore(model)
    if _has_empty(model):
        raise RuntimeError(f"{spec.transformer} has tensors that nothing gave values to")
    model.requires_grad_(False).eval()
    return model.to(device) if packing_device == device else model


def _fill(plan: WeightPlan, name: str, index: int, dtype: torch.dtype) -> int:
    """Read one of the weights that a tensor of the file holds; gives the bytes that it packed."""
    cut, reader = plan.cuts[name], plan.readers[name]
    target, rows = cut.targets[index], cut.rows[index]
    stored = plan.stored(name, index)
    if stored is not None and plan.packing is not None:
        parts = plan.packing.read(stored, reader, name, rows)
        _put_packed(plan.model, target.removesuffix(".weight"), stored, parts, dtype=dtype)
        return sum(part.nbytes for part in parts.values())
    end = rows[1]
    pieces = [(end // 2, end), (0, end // 2)] if cut.swapped else [rows]
    values = reader.read(name, pieces, torch.float32 if plan.is_precise(target) else dtype)
    _put(plan.model, target, torch.cat(values) if cut.swapped else values[0])
    return 0


def _block_of(name: str, lists: Sequence[str]) -> str:
    """The block that a weight belongs to; empty where it is in none of the lists of blocks."""
    blocks = next((each for each in lists if name.startswith(f"{each}.")), None)
    return f"{blocks}.{name[len(blocks) + 1 :].partition('.')[0]}" if blocks else ""


def empty_model(location: BaseLocation, spec: FileSpec) -> nn.Module:
    """As `load_file`, on the meta device: it checks what the header tells and reads no weight."""
    return _plan_file(location, spec, torch.device("meta"), None).model


def plan_weights(
    location: BaseLocation, spec: FileSpec, device: torch.device, packing: Packing | None
) -> WeightPlan:
    """What is read from where, of a folder or a single file; no weight is read.

    Raises:
        BaseModelError: As `load_file` and `load_packed`.
    """
    planned = _plan_folder if location.file is None else _plan_file
    return planned(location, spec, device, packing)


def weight_files(location: BaseLocation) -> list[Path]:
    """The files of the denoiser's weights.

    Raises:
        BaseModelError: When a folder has none.
    """
    return shard_files(location.denoiser) if location.file is None else [location.file]


def is_quantized(location: BaseLocation) -> bool:
    """Whether a library has quantized the base, which then keeps its format."""
    if location.file is not None:
        return False
    settings = read_json(location.denoiser / "config.json")
    return isinstance(settings.get("quantization_config"), dict)


def _plan_file(
    location: BaseLocation,
    spec: FileSpec,
    device: torch.device,
    packing: Packing | None,
    mapped: bool = False,
) -> WeightPlan:
    file = _tidy_file(location, spec)
    formats = check_formats(file)
    model = _build(location, spec, file)
    cuts = _plan_cuts(file, formats, spec, model)
    reader = TensorReader(file, formats, device, mapped)
    return WeightPlan(model, cuts, dict.fromkeys(cuts, reader), packing)


def _plan_folder(
    location: BaseLocation, spec: FileSpec, device: torch.device, packing: Packing | None
) -> WeightPlan:
    folder = location.denoiser
    kind = _class_of(spec.transformer, folder)
    settings = read_json(folder / "config.json")
    if packing is not None and is_quantized(location):
        raise BaseModelError(
            f"memory.base_format is {packing.base_format}, and {folder} is quantized already",
            "a base in bf16, fp16 or fp32, where the trainer is to choose the format",
            "Set memory.base_format to auto, or name the base's bf16 files.",
        )
    with torch.device("meta"):
        model = kind.from_config(settings)
    wanted = {target: tuple(tensor.shape) for target, tensor in model.state_dict().items()}
    readers: dict[str, TensorReader] = {}
    for path in shard_files(folder):
        file = open_weights(path)
        reader = TensorReader(file, check_formats(file), device)
        for target in wanted.keys() & file.tensors.keys():
            _check_shape(file, target, [wanted[target]])
            readers[target] = reader
    missing = sorted(wanted.keys() - readers.keys())
    if missing:
        raise unreadable(folder, f"{len(missing)} weights are missing, {missing[0]} first")
    cuts = {
        name: _Cut((name,), ((0, shape[0] if shape else 1),), False)
        for name, shape in wanted.items()
    }
    return WeightPlan(model, cuts, readers, packing)


def file_settings(location: BaseLocation, spec: FileSpec) -> dict[str, Any]:
    """The settings that Diffusers' class is built with: the pack's, and what the file says.

    Raises:
        BaseModelError: When the file is damaged or lacks what its sizes are read from.
    """
    return _settings(location, spec, _tidy_file(location, spec))


def _tidy_file(location: BaseLocation, spec: FileSpec) -> WeightFile:
    if location.file is None:
        raise ValueError("the base is a folder")
    return spec.tidy(open_weights(location.file))


def _settings(location: BaseLocation, spec: FileSpec, file: WeightFile) -> dict[str, Any]:
    path = location.denoiser / "config.json"
    settings = {k: v for k, v in read_json(path).items() if not k.startswith("_")}
    return settings | spec.settings(file)


def _build(location: BaseLocation, spec: FileSpec, file: WeightFile) -> Any:
    settings = _settings(location, spec, file)
    library, name = spec.transformer.split(".")
    kind = getattr(importlib.import_module(library), name, None)
    known = inspect.signature(kind.__init__).parameters if kind is not None else {}
    unknown = [setting for setting in settings if setting not in known]
    if kind is None or unknown:
        raise BaseModelError(
            f"the installed {library} has no {unknown[0] if unknown else 'class'} in {name}, which "
            f"{file.path} needs",
            f"a newer {library}",
            f"Upgrade it: pip install --upgrade {library}",
        )
    spec.check(file, settings)
    with torch.device("meta"):
        return kind(**settings)


def _plan_cuts(file: WeightFile, formats: Formats, spec: FileSpec, model: Any) -> dict[str, _Cut]:
    """Every tensor of the file to the parts of the model that are cut from it."""
    wanted = {name: tuple(tensor.shape) for name, tensor in model.state_dict().items()}
    native = spec.is_native(file.tensors)
    found: dict[str, list[tuple[Origin, str]]] = {}
    for name in wanted:
        origin = spec.origin(name, native) or Origin(name)
        found.setdefault(origin.name, []).append((origin, name))
    beside = formats.beside | spec.markers
    _refuse_differences(file, set(found), set(file.tensors) - beside)
    cuts: dict[str, _Cut] = {}
    for name, pairs in found.items():
        pairs.sort(key=lambda pair: pair[0].part)
        shapes = [origin.shape(wanted[target]) for origin, target in pairs]
        _check_shape(file, name, shapes)
        starts = list(itertools.accumulate((shape[0] for shape in shapes), initial=0))
        rows = tuple(itertools.pairwise(starts))
        cuts[name] = _Cut(tuple(target for _, target in pairs), rows, pairs[0][0].swapped)
    return cuts


def _refuse_differences(file: WeightFile, needed: set[str], present: set[str]) -> None:
    differences = {"are missing": needed - present, "are unknown": present - needed}
    found = [
        f"{len(names)} tensors {what}, such as {', '.join(sorted(names)[:_NAMED])}"
        for what, names in differences.items()
        if names
    ]
    if found:
        raise file.broken(
            "; ".join(found),
            "exactly the weights of the family's denoiser",
            "Download the file again, or check that family says what the file is.",
        )


def _check_shape(file: WeightFile, name: str, shapes: list[tuple[int, ...]]) -> None:
    expected = (sum(shape[0] for shape in shapes), *shapes[0][1:])
    found = file.tensors[name].shape
    if found != expected:
        raise file.broken(f"{name} has the shape {list(found)}", f"the shape {list(expected)}")


def _put(model: nn.Module, name: str, value: Tensor) -> None:
    path, _, leaf = name.rpartition(".")
    module = model.get_submodule(path)
    if leaf in module._buffers:
        module._buffers[leaf] = value
        return
    # A file may have it without its axes (`Origin.flat`).
    value = value.reshape(getattr(module, leaf).shape)
    module.register_parameter(leaf, nn.Parameter(value, requires_grad=False))


def _put_packed(
    model: nn.Module,
    path: str,
    stored: StoredFormat,
    parts: Mapping[str, Tensor],
    dtype: torch.dtype,
) -> None:
    plain = cast("nn.Linear", model.get_submodule(path))
    shape = plain.out_features, plain.in_features
    parent, _, leaf = path.rpartition(".")
    # Its bias may have been read before, or is still to come.
    packed = QuantizedLinear(stored, shape, parts, bias=plain.bias, precision=dtype)
    setattr(model.get_submodule(parent), leaf, packed)


def _has_empty(model: nn.Module) -> bool:
    """Whether a parameter, a buffer or any other tensor of a module has no memory."""
    return any(
        isinstance(value, Tensor) and value.is_meta
        for module in model.modules()
        for place in (vars(module), module._buffers, module._parameters)
        for value in place.values()
    )


def _return_free_memory() -> None:
    """Return the holes between live tensors, where the system's allocator would keep them.

    That of glibc puts an aligned block of the size of a hole behind all others, as the hole lacks
    the bytes to align it. A base that is packed layer by layer was measured to leave holes of 1.7
    times its own size. Nothing is done elsewhere than on Linux with glibc.
    """
    if sys.platform.startswith("linux"):
        trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
        if trim is not None:
            trim(ctypes.c_size_t(0))
