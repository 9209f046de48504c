"""Loads the frozen models of a base: parts of a Diffusers folder, and denoisers of single files.

This is where the libraries' errors end. A single file becomes Diffusers' model one tensor at a
time.
"""

from __future__ import annotations

import importlib
import inspect
import itertools
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from safetensors import SafetensorError
from torch import Tensor, nn

from ..errors import BaseModelError, TrainerError
from ..printable import shortened
from .base_location import BaseLocation
from .diffusers_folder import read_json
from .file_spec import Origin
from .header import Formats, WeightFile, check_formats, open_weights
from .reading import TensorReader

if TYPE_CHECKING:
    from .file_spec import FileSpec


# How each library calls the argument that gives the weights' precision.
_PRECISION = {"diffusers": "torch_dtype", "transformers": "dtype"}


def load_frozen(
    kind: str, folder: Path, part: str, dtype: torch.dtype, device: torch.device | str
) -> Any:
    """Load a model in evaluation mode and without gradients; never from the network.

    Args:
        kind: Library and class, such as ``diffusers.FluxTransformer2DModel``. The library is
            imported here, because that takes seconds.
        folder: The Diffusers folder.
        part: Its sub-folder.
        dtype: Of the weights.
        device: Where the model computes.

    Returns:
        The model.

    Raises:
        BaseModelError: When the installed library does not know the class, or the files are damaged
            or lack weights.
    """
    library, name = kind.split(".")
    model = getattr(importlib.import_module(library), name, None)
    if model is None:
        raise BaseModelError(
            f"the installed {library} has no {name}, which {folder / part} needs",
            f"a newer {library}",
            f"Upgrade it: pip install --upgrade {library}",
        )
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
        raise _unreadable(folder / part, f"{len(missing)} weights are missing, {missing[0]} first")
    return loaded.requires_grad_(False).eval().to(device)


def load_words(kind: str, folder: Path, part: str) -> Any:
    """Load a tokenizer or a processor of images by its class in transformers, as `load_frozen`."""
    loader = getattr(importlib.import_module("transformers"), kind)
    with reading_part(folder / part):
        return loader.from_pretrained(folder / part, local_files_only=True)


@contextmanager
def reading_part(place: Path) -> Iterator[None]:
    """Turn whatever the files of a part lead a library, or us, into one error that names it.

    The libraries take what stands in a configuration as it is, and check some of it with errors of
    their own: a text where a number belongs can end in any class of error.

    Raises:
        BaseModelError: In place of the library's error.
    """
    try:
        yield
    except (TrainerError, MemoryError, torch.OutOfMemoryError):
        raise
    except Exception as error:
        # Some wrap a damaged file into errors that end in advice on other matters.
        lines = str(error).strip().splitlines()
        kind = "" if isinstance(error, OSError | SafetensorError) else f"{type(error).__name__}: "
        raise _unreadable(place, f"{kind}{lines[0] if lines else 'no reason given'}") from error


@contextmanager
def without_bars(library: str) -> Iterator[None]:
    """Switch a library's progress bars off, and back to what they were.

    Whoever has decided on bars with ``HF_HUB_DISABLE_PROGRESS_BARS`` keeps them as they are.
    """
    from huggingface_hub import constants
    from huggingface_hub.utils import are_progress_bars_disabled, disable_progress_bars

    bars = importlib.import_module(f"{library}.utils.logging")
    decided = constants.HF_HUB_DISABLE_PROGRESS_BARS is not None
    if decided or not bars.is_progress_bar_enabled():
        yield
        return
    downloads_are_silent = are_progress_bars_disabled()
    bars.disable_progress_bar()
    try:
        yield
    finally:
        bars.enable_progress_bar()
        # transformers switches the bars of downloads together with its own.
        if downloads_are_silent:
            disable_progress_bars()


def _unreadable(place: Path, reason: str) -> BaseModelError:
    return BaseModelError(
        f"the files in {place} cannot be loaded ({shortened(reason, 500)})",
        "whole safetensors files and settings of the class that config.json there names",
        "Download or copy this part of the base again.",
    )


_NAMED = 3  # names that a message gives as examples


@dataclass(frozen=True, slots=True)
class _Cut:
    """Parts of the model that a tensor of the file holds, one after another.

    Attributes:
        targets: Their names in the model.
        rows: Length of each along the first axis.
        swapped: Whether the two halves of the only part are in the opposite order in the file.
    """

    targets: tuple[str, ...]
    rows: tuple[int, ...]
    swapped: bool


def load_file(
    location: BaseLocation,
    spec: FileSpec,
    dtype: torch.dtype,
    device: torch.device | str,
    mapped: bool = False,
) -> nn.Module:
    """Load the denoiser of a base that is a single file.

    The model is built without memory and its weights are put in one after another, so that no more
    than one tensor exists twice.

    Args:
        location: A base whose ``file`` is set.
        spec: What the family says of single files.
        dtype: Of the weights; modules that Diffusers keeps in float32 stay so.
        device: Where the model computes.
        mapped: Whether weights that the file has in this format are left there (`TensorReader`).

    Returns:
        Diffusers' model in evaluation mode, without gradients.

    Raises:
        BaseModelError: When the file does not hold exactly the weights of the family, or holds
            them in a format that is not read here.
    """
    reader, model, cuts = _planned(location, spec, torch.device(device), mapped)
    kept = tuple(getattr(model, "_keep_in_fp32_modules", None) or ())
    for name, cut in cuts.items():
        precise = any(part in kept for target in cut.targets for part in target.split("."))
        values = _values(reader, name, cut, torch.float32 if precise else dtype)
        for target, value in zip(cut.targets, values, strict=True):
            _put(model, target, value)
    spec.restore(model)
    if _has_empty(model):
        raise RuntimeError(f"{spec.transformer} has tensors that nothing gave values to")
    return model.requires_grad_(False).eval().to(device)


def empty_model(location: BaseLocation, spec: FileSpec) -> nn.Module:
    """As `load_file`, on the meta device: it checks what the header tells and reads no weight."""
    return _planned(location, spec, torch.device("meta"))[1]


def _planned(
    location: BaseLocation, spec: FileSpec, device: torch.device, mapped: bool = False
) -> tuple[TensorReader, Any, dict[str, _Cut]]:
    """A reader of the file, the model without memory, and what goes where."""
    file = _tidy_file(location, spec)
    formats = check_formats(file)
    model = _build(location, spec, file)
    return (
        TensorReader(file, formats, device, mapped),
        model,
        _plan_cuts(file, formats, spec, model),
    )


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
    path = location.folder / "transformer" / "config.json"
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
        shapes = [wanted[target] for _, target in pairs]
        _check_shape(file, name, shapes)
        rows = tuple(shape[0] for shape in shapes)
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


def _values(reader: TensorReader, name: str, cut: _Cut, dtype: torch.dtype) -> Iterable[Tensor]:
    if cut.swapped:
        end = cut.rows[0]
        return [torch.cat(reader.read(name, [(end // 2, end), (0, end // 2)], dtype))]
    starts = itertools.accumulate(cut.rows, initial=0)
    return reader.read(name, [(a, a + n) for a, n in zip(starts, cut.rows, strict=False)], dtype)


def _put(model: nn.Module, name: str, value: Tensor) -> None:
    path, _, leaf = name.rpartition(".")
    module = model.get_submodule(path)
    if leaf in module._buffers:
        module._buffers[leaf] = value
    else:
        module.register_parameter(leaf, nn.Parameter(value, requires_grad=False))


def _has_empty(model: nn.Module) -> bool:
    """Whether a parameter, a buffer or any other tensor of a module has no memory."""
    return any(
        isinstance(value, Tensor) and value.is_meta
        for module in model.modules()
        for place in (vars(module), module._buffers, module._parameters)
        for value in place.values()
    )
