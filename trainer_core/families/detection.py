"""Tells which family a base is of, from its header or its index alone."""

from __future__ import annotations

from pathlib import Path

from ..errors import BaseModelError
from .location import EMBEDDED, read_json
from .single_file import WeightFile, looks_like_file, open_weights

_NAMED = 3  # names that a message gives as examples


def detect_base(path: str | Path) -> str:
    """Find the family of a base. Reads a header or two small files, never a weight.

    Args:
        path: A Diffusers folder, a single file, or ``embedded``.

    Returns:
        The family's name.

    Raises:
        BaseModelError: When there is nothing, it is damaged, or no family's.
    """
    if str(path) == EMBEDDED:
        return "qwen_image"
    place = Path(path).expanduser()
    if place.is_dir():
        return _folder_family(place)
    if place.is_file():
        return file_family(open_weights(place))
    kind = "file" if looks_like_file(str(path)) else "folder or file"
    raise BaseModelError(
        f"base.path: {path} does not exist",
        f"a {kind} with a base model",
        "Correct the path, or download the model first.",
    )


def file_family(file: WeightFile) -> str:
    """Find the family of an opened single file.

    Args:
        file: Its header.

    Returns:
        The family's name.

    Raises:
        BaseModelError: When the names are no family's, or fit several.
    """
    from . import FAMILIES

    found = [family for family in FAMILIES.values() if family.detect(file.tensors)]
    if len(found) == 1:
        return found[0].name
    names = ", ".join(sorted(file.tensors)[:_NAMED])
    known = ", ".join(family.title for family in FAMILIES.values())
    raise file.broken(
        f"its {len(file.tensors)} tensors ({names}, ...) are of no family that is known here",
        f"the denoiser of one of these: {known}",
        "Name the file of the diffusion model itself, not of a text encoder or VAE.",
    )


def _folder_family(folder: Path) -> str:
    from . import FAMILIES

    index = folder / "model_index.json"
    if not index.is_file():
        raise BaseModelError(
            f"base.path: {folder} has no model_index.json",
            "a Diffusers folder",
            "Name the folder that holds model_index.json.",
        )
    pipeline = read_json(index).get("_class_name")
    for family in FAMILIES.values():
        if pipeline in family.folder.pipelines:
            return family.name
    known = ", ".join(name for family in FAMILIES.values() for name in family.folder.pipelines)
    raise BaseModelError(
        f"{index} says {pipeline}", f"one of {known}", "Name a base of one of these families."
    )
