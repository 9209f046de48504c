"""What a ``base.path`` names, told from the text and the disk alone: nothing heavy is imported."""

from __future__ import annotations

import re
from pathlib import Path

from ..errors import BaseModelError
from ..filesystem.file_names import missing_in_words

GGUF_SUFFIX = ".gguf"
FILE_SUFFIXES = (".safetensors", ".sft", GGUF_SUFFIX)
"""Endings of single files that are read."""

# Endings that say "a file of weights" to a person, so that such a path is never taken for a hub id.
_WEIGHT_SUFFIXES = (*FILE_SUFFIXES, ".ckpt", ".pt", ".pth", ".bin")
DENOISERS = ("transformer", "transformer_2")
"""Sub-folders of a Diffusers folder that a ``base.path`` may name: some have two denoisers."""

_HUB_ID = re.compile(rf"([A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*?)(?:/({'|'.join(DENOISERS)}))?")


def names_hub(text: str) -> bool:
    """Whether a ``base.path`` is a hub id: `has_hub_form`, and there is no such path here."""
    return has_hub_form(text) and not Path(text).expanduser().exists()


def has_hub_form(text: str) -> bool:
    """Whether a text is written as a hub id is, and is not a file of weights."""
    return not looks_like_file(text) and _HUB_ID.fullmatch(text) is not None


def split_denoiser(place: Path) -> tuple[Path, str]:
    """The Diffusers folder of a ``base.path``, and the denoiser in it that the path names.

    One of `DENOISERS`; empty where the path names the folder alone.
    """
    named, index = place.name in DENOISERS, "model_index.json"
    if named and not (place / index).is_file() and (place.parent / index).is_file():
        return place.parent, place.name
    return place, ""


def split_hub(text: str) -> tuple[str, str]:
    """As `split_denoiser`, of a hub id: ``owner/name`` or ``owner/name/transformer_2``."""
    found = _HUB_ID.fullmatch(text)
    return (found[1], found[2] or "") if found else (text, "")


def base_file(text: str) -> Path | None:
    """The single file of a ``base.path``; None where it names a folder or a hub id.

    Raises:
        BaseModelError: When it names a file that is not there.
    """
    path = Path(text).expanduser()
    if path.is_file():
        return path
    if not looks_like_file(text) or path.exists():
        return None
    raise BaseModelError(
        f"base.path: {text} {missing_in_words(text)}",
        "a .safetensors or .gguf file with the weights of a base model",
        "Correct base.path. A relative path starts at the run file's folder.",
    )


def local_folder(text: str, setting: str) -> Path:
    """The folder that a setting names; `BaseModelError` where there is none."""
    path = Path(text).expanduser()
    if path.is_dir():
        return path
    found = "is a file" if path.exists() else missing_in_words(text)
    single = " or a .safetensors or .gguf file" if setting == "base.path" else ""
    raise BaseModelError(
        f"{setting}: {text} {found}",
        f"a Diffusers folder (with model_index.json, transformer, vae, ...){single}",
        f"Correct {setting}. A hub id has the form owner/name; 'embedded' needs no files.",
    )


def looks_like_file(text: str) -> bool:
    """Whether a ``base.path`` names a file of weights by its ending."""
    return text.lower().endswith(_WEIGHT_SUFFIXES)
