"""Tells which family a base is of, from its header or its index alone."""

from __future__ import annotations

import re
from pathlib import Path

from ..errors import BaseModelError
from ..families.registry import FAMILIES, embedded_family
from ..weights.base_location import EMBEDDED
from ..weights.diffusers_folder import class_name
from ..weights.header import WeightFile, looks_like_file, open_weights
from ..weights.quantization import check_formats

_NAMED = 3  # names that a message gives as examples
# "distill" with nothing before it that turns it round, as in de-distilled.
_DISTILLED = re.compile(
    r"(?<![a-z])(schnell|lightning|turbo|hyper|lightx2v|nunchaku|[48]-?steps?)(?![a-z])"
    r"|(?<!de)(?<!de[-_ ])(?<!un)(?<!un[-_ ])distill(ed)?"
)


def detect_base(path: str | Path) -> str:
    """Find the family of a base, and refuse a file that could not be trained on.

    Reads a header or two small files, never a weight.

    Args:
        path: A Diffusers folder, a single file, or ``embedded``.

    Returns:
        The family's name.

    Raises:
        BaseModelError: When there is nothing, it is damaged, no family's, in a number format that
            is not read, or a model of a family that is not trained here.
    """
    if str(path) == EMBEDDED:
        return embedded_family().name
    place = Path(path).expanduser()
    if place.is_dir():
        return _folder_family(place)
    if place.is_file():
        return trainable_family(open_weights(place))
    kind = "file" if looks_like_file(str(path)) else "folder or file"
    raise BaseModelError(
        f"base.path: {path} does not exist",
        f"a {kind} with a base model",
        "Correct the path, or download the model first.",
    )


def trainable_family(file: WeightFile) -> str:
    """Find the family of an opened single file, and refuse what could not be trained on.

    Args:
        file: Its header.

    Returns:
        The family's name.

    Raises:
        BaseModelError: As `detect_base`.
    """
    name = file_family(file)
    check_formats(file)
    spec = FAMILIES[name].file
    spec.settings(spec.tidy(file))
    distilled = _DISTILLED.search(file.hints)
    if distilled is not None:
        raise file.broken(
            f"its name or title says {distilled.group()!r}, so that it is distilled to few steps",
            "a model that was not distilled: training would undo the distillation",
            "Train on the model that it was made from; most adapters work on both. If the name is "
            "wrong, rename the file.",
        )
    return name


def file_family(file: WeightFile) -> str:
    """Find the family of an opened single file.

    Args:
        file: Its header.

    Returns:
        The family's name.

    Raises:
        BaseModelError: When the names are no family's, or fit several.
    """
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
    index = folder / "model_index.json"
    if not index.is_file():
        raise BaseModelError(
            f"base.path: {folder} has no model_index.json",
            "a Diffusers folder",
            "Name the folder that holds model_index.json.",
        )
    pipeline = class_name(index)
    for family in FAMILIES.values():
        if pipeline in family.folder.pipelines:
            return family.name
    known = ", ".join(name for family in FAMILIES.values() for name in family.folder.pipelines)
    raise BaseModelError(
        f"{index} says {pipeline}", f"one of {known}", "Name a base of one of these families."
    )
