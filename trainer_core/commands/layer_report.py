"""The layers of any base, as ``doctor BASE --layers`` lists them.

Names, shapes and counts are those of the denoiser that a run adapts; of a class that no family
knows, those in the headers of the weights.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from math import prod
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..errors import BaseModelError
from ..weights.base_location import EMBEDDED
from ..weights.diffusers_folder import class_name, shard_files
from ..weights.header import open_weights

if TYPE_CHECKING:
    from torch import nn

_BLOCKS = re.compile(r"((?:\w+\.)*?\w+)\.\d+\.")
_FEWEST = 2
"""Blocks that make a list a repeated one."""
_SHARD = re.compile(r"-\d{5}-of-\d{5}\.safetensors$")
_ATTENTION = re.compile(r"attn|attention", re.IGNORECASE)


def layer_report(base: str) -> dict[str, Any]:
    """List the layers of a base.

    Returns:
        Its class and family, what of it is repeated, each kind of layer with its shape and count,
        and patterns that would adapt them.

    Raises:
        BaseModelError: When there are no weights that can be read, or not all of them.
    """
    from ..adapters.layer_list import layer_lines, shape_in_words

    place = _place(base)
    family, named = _named(place, base)
    shapes = _shapes(place) if family is None else _shapes_of_family(base, family)
    layers = {
        name.removesuffix(".weight"): shape
        for name, shape in shapes.items()
        if name.endswith(".weight") and len(shape) > 1
    }
    lists = _repeated(layers)
    return {
        **named,
        "parameters": sum(map(prod, shapes.values())),
        "blocks": lists,
        "layers": layer_lines((name, shape_in_words(shape)) for name, shape in layers.items()),
        "other_tensors": len(shapes) - len(layers),
        "targets": _targets(layers, lists),
    }


def other_layers(module: nn.Module, names: Iterable[str]) -> list[str]:
    """The layers of a module that could have an adapter and are none of those named, as lines."""
    from ..adapters.layer_list import layer_lines, shape_in_words
    from ..adapters.targets import LayerIndex

    without = set(names)
    return layer_lines(
        (layer.paths[0], shape_in_words(layer.module.get_parameter("weight").shape))
        for layer in LayerIndex(module).layers
        if without.isdisjoint(layer.paths)
    )


def _place(base: str) -> Path:
    from ..families.registry import embedded_family

    place = embedded_family().embedded if base == EMBEDDED else Path(base).expanduser()
    if place is not None and _SHARD.search(place.name):
        raise BaseModelError(
            f"{base} is one of several files of a model",
            "all of its weights: the folder that they are in",
            "Name the folder.",
        )
    if place is not None and place.exists():
        return place
    raise BaseModelError(
        f"there is no {base}",
        "a Diffusers folder, or a .safetensors or .gguf file of a base",
        "Check the path, or download the model first.",
    )


def _shapes(place: Path) -> dict[str, tuple[int, ...]]:
    if place.is_file():
        return {name: info.shape for name, info in open_weights(place).tensors.items()}
    parts = (place / part for part in ("transformer", "unet"))
    folder = next((part for part in parts if part.is_dir()), place)
    files = map(open_weights, shard_files(folder))
    return {name: info.shape for file in files for name, info in file.tensors.items()}


def _shapes_of_family(base: str, name: str) -> dict[str, tuple[int, ...]]:
    """As a run names them: a single file has ComfyUI's names, which ``adapter.targets`` has not."""
    from ..bases.locate import detect_variant, locate_base
    from ..config import BaseSection
    from ..families.registry import get_family
    from ..offload.empty_base import empty_base

    family, section = get_family(name), BaseSection(path=base)
    edits = detect_variant(base, family) not in {None, "generate"}
    place = locate_base(section, family, edits, needs_encoders=False, to_train=False)
    return {name: tuple(each.shape) for name, each in empty_base(place, family).weights.items()}


def _named(place: Path, base: str) -> tuple[str | None, dict[str, str]]:
    """The family that trains a model, and its class, where it says one, with that."""
    from ..bases.locate import NO_FAMILY, detect_base

    configs = (place / part / "config.json" for part in ("transformer", "unet", "."))
    config = next((each for each in configs if each.is_file()), None)
    found = {} if config is None else {"class": class_name(config)}
    try:
        family = detect_base(base)
        return family, {**found, "family": family}
    except BaseModelError as error:
        return None, {**found, "family": f"none: {error.found}. {NO_FAMILY}"}


def _repeated(layers: Iterable[str]) -> dict[str, int]:
    """Lists of blocks by name, each with its length; lists inside blocks are part of them."""
    blocks: dict[str, set[str]] = {}
    for name in layers:
        if found := _BLOCKS.match(f"{name}."):
            blocks.setdefault(found[1], set()).add(found[0])
    return {name: len(found) for name, found in blocks.items() if len(found) >= _FEWEST}


def _targets(layers: Iterable[str], lists: Mapping[str, int]) -> dict[str, list[str]]:
    """Patterns for ``adapter.targets``: all layers of the blocks, and those of attention."""
    from ..adapters.layer_list import NUMBER

    every = [rf"{re.escape(name)}\.\d+\..*" for name in lists]
    attention = sorted(
        {
            r"\d+".join(map(re.escape, NUMBER.split(name)))
            for name in layers
            if _ATTENTION.search(name) and any(name.startswith(f"{each}.") for each in lists)
        }
    )
    return {"blocks": every, "attention": attention}
