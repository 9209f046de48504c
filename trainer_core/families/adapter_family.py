"""Tells which family an adapter file is for, from its header alone."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path

from ..errors import AdapterFileError
from ..formats import KeyMap, open_file
from ..formats.keys import NATIVE_PREFIX
from ..formats.metadata import SETTINGS_KEY
from ..formats.spellings import is_native, misfits
from ..text_files import parse_json
from . import FAMILIES, get_family
from .family import Family


def adapter_family(path: Path, wanted: str | None = None) -> Family:
    """Find the family of an adapter.

    Args:
        path: The file, or PEFT's folder.
        wanted: The family's name as somebody says it; None finds it out.

    Raises:
        AdapterFileError: When it is no adapter file, or its layers fit no family or several, and
            its header does not say which.
        BaseModelError: When there is no family of the wanted name.
    """
    if wanted is not None:
        return get_family(wanted)
    with open_file(path) as file:
        names = [*file.layers, *file.extras]
        odd = {n: misfits(file.layers, file.extras, each.key_map) for n, each in FAMILIES.items()}
        told = _told(file.metadata)
    found = [name for name, misfitting in odd.items() if not misfitting]
    if told in found:
        return FAMILIES[told]
    # Two families call some layers alike in Diffusers, and only one of them so in ComfyUI.
    found = [name for name in found if _is_native(names, FAMILIES[name].key_map)] or found
    if len(found) == 1:
        return FAMILIES[found[0]]
    if found:
        raise AdapterFileError(
            f"{path}: its layers fit {' and '.join(found)}",
            "an adapter whose layers or header tell its family",
            "Name the family: --family NAME, or the node's input family.",
        )
    raise _no_family(path, names, odd)


def _no_family(path: Path, names: list[str], odd: Mapping[str, list[str]]) -> AdapterFileError:
    nearest = min(odd, key=lambda name: len(odd[name]))
    if len(odd[nearest]) < len(names):
        return AdapterFileError(
            f"{path}: {odd[nearest][0]!r} is no layer of {FAMILIES[nearest].title}, which others "
            "of its layers fit",
            "an adapter of one family, whose every layer the family has",
            "Check what the file was made for. If it was made for this family, leave out the layer "
            "that does not fit.",
        )
    return AdapterFileError(
        f"{path}: an adapter with layers such as {names[0]!r}, of no family that is known here",
        "an adapter for " + " or ".join(family.title for family in FAMILIES.values()),
        "Choose the family, if you know it; then the layer that does not fit is named.",
    )


def _is_native(names: Iterable[str], key_map: KeyMap) -> bool:
    """Whether all names that claim to be ComfyUI's are names of the family in ComfyUI."""
    claimed = [n.removeprefix(NATIVE_PREFIX) for n in names if n.startswith(NATIVE_PREFIX)]
    return bool(claimed) and all(is_native(name, key_map) for name in claimed)


def _told(metadata: Mapping[str, str]) -> str | None:
    try:
        told = parse_json(metadata.get(SETTINGS_KEY, "{}"))
    except ValueError:
        return None
    family = told.get("family") if isinstance(told, dict) else None
    return family if isinstance(family, str) else None
