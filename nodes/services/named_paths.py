"""Paths of a run file as the names that nodes offer for them.

The run file may come from a stranger: a path that lies in no folder that ComfyUI allows, or that is
not there, has no name. Each function gives an empty text for it.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from ...trainer_core.errors import InputError
from ..host import comfy_host
from ..host.folders import resolve_below


def dataset_name(path: Path) -> str:
    """As Dataset From Folder names a folder."""
    return _checked(_below(path, comfy_host.data_roots()), comfy_host.dataset_path)


def base_name(path: Path) -> str:
    """As Load Training Base names a model."""
    return _listed(path, comfy_host.base_names(), comfy_host.base_path)


def lora_name(path: Path) -> str:
    """As Load LoRA names an adapter file."""
    return _listed(path, comfy_host.lora_names(), comfy_host.lora_path)


def image_name(path: Path) -> str:
    """As Load Image names an image: of the input folder, or with ``[output]`` behind it."""
    roots = {kind: comfy_host.data_roots()[kind] for kind in ("input", "output")}
    name = _checked(_below(path, roots), lambda name: resolve_below(name, roots, "image"))
    kind, _, rest = name.partition("/")
    return f"{rest} [output]" if kind == "output" else rest


def _listed(path: Path, names: Sequence[str], path_of: Callable[[str], str | Path]) -> str:
    """The name of a file in a list, in which other files may be gone, or be links to nothing."""
    for name in names:
        with contextlib.suppress(InputError):
            if Path(path_of(name)).absolute() == path.absolute():
                return name
    return ""


def _below(path: Path, roots: Mapping[str, Sequence[Path]]) -> str:
    """``<root>/<path below it>``."""
    for name, places in roots.items():
        for place in places:
            root = Path(place).absolute()
            if path.absolute().is_relative_to(root):
                rest = path.absolute().relative_to(root).as_posix()
                return f"{name}/{rest}" if ".." not in Path(rest).parts else ""
    return ""


def _checked(name: str, resolve: Callable[[str], object]) -> str:
    try:
        resolve(name)
    except InputError:
        return ""
    return name
