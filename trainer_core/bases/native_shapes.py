"""The shapes of a base's tensors by ComfyUI's names: of the published base, or of one that is here.

No weight is read.
"""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Iterable
from typing import TYPE_CHECKING

from ..errors import AdapterFileError
from ..weights.diffusers_folder import read_json

if TYPE_CHECKING:
    from ..families.family import Family
    from ..families.layer_sizes import PublishedSizes
    from ..tensors.safetensors_reader import Source
    from .open import BaseWeights

Shape = tuple[int, ...]


def published_sizes(family: Family) -> PublishedSizes:
    """The sizes of a family's published base, from its bundled settings.

    Args:
        family: The architecture.
    """
    folder = family.file.configs / family.variants[0]
    return family.sizes(read_json(folder / "transformer" / "config.json"))


def embedded_sizes(family: Family) -> PublishedSizes | None:
    """The sizes of the embedded base; None for a family that it is not of.

    Args:
        family: The architecture.
    """
    if family.embedded is None:
        return None
    return family.sizes(read_json(family.embedded / "transformer" / "config.json"))


def published_shapes(family: Family) -> dict[str, Shape]:
    """The shapes of the family's published base, from its bundled settings.

    Args:
        family: The architecture.

    Returns:
        ComfyUI's name of each tensor of the denoiser, such as ``img_in.weight``, to its shape.
    """
    import torch

    path = family.file.configs / family.variants[0] / "transformer" / "config.json"
    library, name = family.file.transformer.split(".")
    kind = getattr(importlib.import_module(library), name)
    known = inspect.signature(kind.__init__).parameters
    settings = {key: value for key, value in read_json(path).items() if key in known}
    with torch.device("meta"):
        model = kind(**settings)
    return _native(family, ((key, tuple(each.shape)) for key, each in model.state_dict().items()))


def base_shapes(base: BaseWeights) -> dict[str, Shape]:
    """The shapes of a base that lies on this machine, from its headers.

    Args:
        base: An opened base.

    Returns:
        As `published_shapes`.
    """
    shapes = ((name, base.shape(name) or ()) for name in base.names)
    return _native(base.family, shapes)


def require_fit(path: Source, base: BaseWeights) -> None:
    """Refuse an adapter whose layers are not those of a base.

    Args:
        path: An adapter file, or a folder with one, of the base's family.
        base: An opened base.

    Raises:
        AdapterFileError: When a layer is missing in the base, or has another size there.
    """
    from ..adapter_files.read.adapter_file import open_adapter
    from ..adapter_files.verify.proof import adapter_shapes

    shapes = base_shapes(base)
    with open_adapter(path, base.family.key_map) as adapter:
        wanted = adapter_shapes(adapter.state, base.family.key_map)
    for name, shape in wanted.items():
        found = shapes.get(name)
        # Not every layer has a bias, and no factors are for one.
        if found == shape or (found is None and not name.endswith(".weight")):
            continue
        here = "is not in the base" if found is None else f"is {_sizes(found)} in the base"
        raise AdapterFileError(
            f"{path} has a change of {_sizes(shape)} for {name}, which {here} {base.path}",
            "an adapter for this base",
            "Name the base that the adapter was trained on.",
        )


def _sizes(shape: Shape) -> str:
    return " x ".join(str(size) for size in shape)


def _native(family: Family, shapes: Iterable[tuple[str, Shape]]) -> dict[str, Shape]:
    """Join what Diffusers keeps apart: the rows of a fused tensor are those of its parts."""
    found: dict[str, Shape] = {}
    for name, shape in shapes:
        try:
            native = family.file.origin(name, True).name
        except ValueError:  # it has ComfyUI's name already
            native = name
        rows = found[native][0] if native in found else 0
        found[native] = (rows + shape[0], *shape[1:])
    return found
