"""The parts of a Diffusers folder: whether they are there, whole, and plausible, before any loads.

The libraries take what a configuration says as it is. So numbers that no model has are refused
here, and so are weights that they would silently turn into others.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from ..config.base_path import DENOISERS, looks_like_file
from ..errors import BaseModelError
from ..filesystem.text_files import read_object

# A part, to the files of which it has at least one.
_MARKS: dict[str, tuple[str, ...]] = {
    "tokenizer": ("tokenizer_config.json",),
    "tokenizer_2": ("tokenizer_config.json",),
    "scheduler": ("scheduler_config.json",),
    "image_processor": ("preprocessor_config.json",),
    "processor": ("preprocessor_config.json", "processor_config.json"),
}
_VOCABULARIES = ("tokenizer.json", "vocab.json", "vocab.txt", "spiece.model", "tokenizer.model")
_STEM = "diffusion_pytorch_model.safetensors"
_MOST_LAYERS = 1000
_COUNTS_LAYERS = ("layer", "depth", "blocks")
_FLOATS = ("F", "BF")
_AGAIN = "Copy or download the base again, with all of its files."


def read_json(path: Path) -> dict[str, Any]:
    """Read a configuration file of a base: a JSON object.

    Raises:
        BaseModelError: When the file is missing, unreadable, too large, or not a JSON object.
    """

    def refuse(reason: str) -> BaseModelError:
        return BaseModelError(
            f"{path} cannot be read ({reason})",
            "a configuration file of a Diffusers folder: a JSON object",
            _AGAIN,
        )

    return read_object(path, refuse)


def class_name(path: Path) -> str:
    """The class that a configuration file of a base names.

    Raises:
        BaseModelError: As `read_json`.
    """
    return str(read_json(path).get("_class_name"))


def weight_files(index: Path) -> list[str]:
    """The files that a ``*.safetensors.index.json`` names; none leads out of its folder.

    Raises:
        BaseModelError: As `read_json`, and when it holds no such names.
    """
    names = read_json(index).get("weight_map")
    files: list[Any] = list(names.values()) if isinstance(names, dict) else [None]
    for name in files:
        if not isinstance(name, str) or Path(name).name != name or "\0" in name:
            raise BaseModelError(
                f"{index} names the file {str(name)[:200]!r}",
                "names of .safetensors files beside it",
                "Download the base again, from a source that you trust.",
            )
    return sorted(set(files))


def shard_files(folder: Path) -> list[Path]:
    """The files that Diffusers would load; a folder may hold other precisions beside them.

    Raises:
        BaseModelError: When they are absent, or are not files of weights.
    """
    index = folder / f"{_STEM}.index.json"
    if not index.is_file():
        if (folder / _STEM).is_file():
            return [folder / _STEM]
        raise BaseModelError(
            f"{folder} has no {_STEM}",
            "the weights in the usual name of a Diffusers folder",
            "Download the base's own files, or save it again with save_pretrained.",
        )
    names = weight_files(index)
    for name in names:
        # What is written later gets these names too.
        if not looks_like_file(name):
            raise BaseModelError(
                f"{index} names the file {name!r}",
                "names of .safetensors files beside it",
                "Download the base again, from a source that you trust.",
            )
    return [folder / name for name in names]


def check_part(folder: Path, part: str, setting: str) -> None:
    """Refuse a part that is not whole, or that no model is like.

    Args:
        setting: What names the folder in the run file, for the message.

    Raises:
        BaseModelError: When something is missing, damaged, or no weights of a base.
    """
    place = folder / part
    if not place.is_dir():
        raise BaseModelError(
            f"{folder} has no {part} folder",
            f"a Diffusers folder with {part}",
            f"Copy or download the base again, with all of its parts, or correct {setting}.",
        )
    marks = [place / name for name in _MARKS.get(part, ("config.json",))]
    found = [mark for mark in marks if mark.is_file()]
    if not found:
        raise BaseModelError(
            f"{place} has no {' or '.join(mark.name for mark in marks)}",
            f"a whole {part} folder",
            _AGAIN,
        )
    if part.startswith("tokenizer") and not any((place / name).is_file() for name in _VOCABULARIES):
        # transformers makes a tokenizer without words of such a folder, and says nothing.
        raise BaseModelError(
            f"{place} has no vocabulary", f"one of {', '.join(_VOCABULARIES)}", _AGAIN
        )
    settings = read_json(found[0])
    _check_layers(found[0], settings)
    if part not in _MARKS:
        _check_weights(place, settings)


def is_whole(folder: Path, part: str) -> bool:
    """Whether `check_part` finds nothing wrong."""
    try:
        check_part(folder, part, "base.path")
    except BaseModelError:
        return False
    return True


def _check_layers(path: Path, settings: Mapping[str, Any]) -> None:
    """Refuse numbers of layers that would take hours and all memory before a weight is read."""
    for name, value in _numbers(settings):
        counts = any(word in name for word in _COUNTS_LAYERS)
        if counts and value > _MOST_LAYERS:
            raise BaseModelError(
                f"{path}: {name} is {value:.4g}",
                f"at most {_MOST_LAYERS}",
                "Copy or download the base again; the file is damaged.",
            )


def _numbers(settings: Mapping[str, Any]) -> Iterator[tuple[str, float]]:
    """Every number by its name, and every list by its length; also in settings of inner models."""
    waiting: list[tuple[str, Any]] = [(str(name), value) for name, value in settings.items()]
    while waiting:
        name, value = waiting.pop()
        if isinstance(value, dict):
            waiting += [(str(inner), each) for inner, each in value.items()]
        elif isinstance(value, list):
            yield name, len(value)
            waiting += [(name, each) for each in value[:_MOST_LAYERS]]
        elif isinstance(value, int | float):
            yield name, value


def _check_weights(place: Path, settings: Mapping[str, Any]) -> None:
    for index in place.glob("*.safetensors.index.json"):
        for name in weight_files(index):
            if not (place / name).is_file():
                raise BaseModelError(
                    f"{place} has no {name}, which {index.name} names",
                    "all files of the weights",
                    "Finish the download of the base.",
                )
    files = sorted(place.glob("*.safetensors"))
    if not files:
        raise BaseModelError(
            f"{place} has no weights in a .safetensors file",
            "weights as .safetensors (other formats can run code and are not read)",
            "Download the base's .safetensors files, or save it again with save_pretrained.",
        )
    # A quantizing library knows its own integers.
    if not isinstance(settings.get("quantization_config"), dict):
        for file in files:
            _refuse_integers(file, every=place.name in DENOISERS)


def _refuse_integers(file: Path, *, every: bool) -> None:
    """Refuse integers where weights belong: the libraries would cast them, and train on that.

    Text encoders keep masks and positions beside their weights; of a denoiser every tensor counts.
    """
    from .header import read_header

    for name, info in read_header(file)[0].items():
        weight = every or (name.endswith(".weight") and len(info.shape) > 1)
        if weight and not info.code.startswith(_FLOATS):
            raise BaseModelError(
                f"{file}: {name} is stored as {info.code}",
                "weights in a floating-point format (bf16, fp16, fp32), or quantized by a library "
                "that config.json names (quantization_config)",
                "Use the base's bf16 files instead.",
            )
