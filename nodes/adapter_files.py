"""Adapter files of the graph: into the loras folder, in the wanted layout."""

from __future__ import annotations

import contextlib
import uuid
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..trainer_core.errors import AdapterFileError, InputError, NonFiniteError
from . import comfy_host
from .folders import checked_parts

if TYPE_CHECKING:
    from torch import Tensor

    from ..trainer_core.families import Family

_SUFFIX = ".safetensors"
_MOST_COPIES = 10_000


def save_adapter(
    source: Path | Mapping[str, Tensor], name: str, layout: str, *, overwrite: bool
) -> Path:
    """Write an adapter into the loras folder.

    Args:
        source: A file, or tensors by key.
        name: Name of the new file, without its ending.
        layout: ``comfyui`` or ``diffusers``.
        overwrite: Whether to replace a file of this name.

    Returns:
        The file.

    Raises:
        InputError: When the name leads elsewhere or the adapter cannot be read.
        StorageError: When the file cannot be written.
    """
    return convert_adapter(source, name, layout, "auto", overwrite=overwrite)


def convert_adapter(
    source: Path | Mapping[str, Tensor], name: str, layout: str, family: str, *, overwrite: bool
) -> Path:
    """Read an adapter and write it in a layout; as `save_adapter`, with the family named.

    Factors keep their number format; where they have several, fp32 is written.

    Args:
        source: A file, or tensors by key.
        name: Name of the new file, without its ending.
        layout: ``comfyui`` or ``diffusers``.
        family: A family's name, or ``auto``.
        overwrite: Whether to replace a file of this name.
    """
    from ..trainer_core.formats import read_adapter, write_adapter
    from ..trainer_core.formats.reading import read_file

    target = _target(name, overwrite=overwrite)
    with contextlib.ExitStack() as stack:
        path = source if isinstance(source, Path) else stack.enter_context(as_file(source))
        file = read_file(path)
        found = _family_of(file.layers, family)
        key_map = found.key_map
        state = read_adapter(path, key_map)
        given = target, state, layout, key_map, _own_header(file.metadata)
        dtype = _dtype_of(path)
        try:
            write_adapter(*given, dtype)
        except NonFiniteError:
            # A layout that takes alpha into a factor can make it too large for fp16.
            if dtype == "fp32":
                raise
            write_adapter(*given, "fp32")
    return target


@contextlib.contextmanager
def as_file(lora: Mapping[str, Tensor]) -> Iterator[Path]:
    """An adapter of the graph as a file, for as long as a block.

    Args:
        lora: Tensors by key.

    Yields:
        The file.

    Raises:
        StorageError: When it cannot be written.
    """
    from ..trainer_core.storage import save_tensors

    path = comfy_host.output_folder() / f".adapter-{uuid.uuid4().hex}{_SUFFIX}"
    try:
        save_tensors(path, lora)
        yield path
    finally:
        path.unlink(missing_ok=True)


def _dtype_of(path: Path) -> str:
    """The one number format of a file's factors, or fp32."""
    from safetensors import safe_open

    with safe_open(str(path), framework="pt") as file:
        factors = [key for key in file.keys() if not key.endswith(".alpha")]  # noqa: SIM118
        found = {str(file.get_slice(key).get_dtype()) for key in factors}
    known = {"BF16": "bf16", "F16": "fp16"}
    return known.get(found.pop(), "fp32") if len(found) == 1 else "fp32"


def _own_header(metadata: Mapping[str, str]) -> dict[str, str]:
    # What the layout writes by itself comes anew.
    return {k: v for k, v in metadata.items() if k not in {"format", "lora_adapter_metadata"}}


def _family_of(layers: Mapping[str, Any], name: str) -> Family:
    from ..trainer_core.families import FAMILIES, get_family
    from ..trainer_core.formats.reading import module_name

    if name != "auto":
        return get_family(name)
    for family in FAMILIES.values():
        key_map = family.key_map
        if all(module_name(layer, key_map) is not None for layer in layers):
            return family
    raise AdapterFileError(
        f"an adapter with layers such as {next(iter(layers))!r}, of no family that is known here",
        "an adapter for " + " or ".join(family.title for family in FAMILIES.values()),
        "Choose the family, if you know it.",
    )


def _target(name: str, *, overwrite: bool) -> Path:
    parts = checked_parts(name.removesuffix(_SUFFIX), "name")
    root = comfy_host.loras_folder()
    folder = root.joinpath(*parts[:-1])
    if not folder.resolve().is_relative_to(root.resolve()):
        raise InputError(
            f"name: {name} leads out of the loras folder through a link",
            "a folder that lies there itself",
            "Choose another name.",
        )
    first = folder / f"{parts[-1]}{_SUFFIX}"
    if overwrite or not first.exists():
        return first
    for number in range(2, _MOST_COPIES):
        path = folder / f"{parts[-1]}_{number}{_SUFFIX}"
        if not path.exists():
            return path
    raise InputError(
        f"name: {name} is taken {_MOST_COPIES} times", "a free name", "Choose another."
    )
