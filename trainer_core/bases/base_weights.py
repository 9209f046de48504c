"""The weights of a base one at a time, by Diffusers' names whatever form the base has.

Nothing is loaded when a base is opened: headers and small configuration files are read, and a
weight when it is asked for. It works for what no run could train on too, such as a distilled base.
The shapes, by ComfyUI's names, are known of the published bases too.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..config import BaseSection
from ..errors import BaseModelError
from ..families.registry import get_family
from ..filesystem.storage import given_path
from ..weights.base_location import EMBEDDED
from ..weights.diffusers_folder import read_json, shard_files
from ..weights.header import WeightFile, check_formats, open_weights
from .locate import detect_base, file_family, locate_base

if TYPE_CHECKING:
    from torch import Tensor

    from ..families.family import Family
    from ..families.published_sizes import PublishedSizes
    from ..weights.header import Formats


@dataclass(frozen=True)
class BaseFile:
    """One file of weights.

    Attributes:
        path: The file.
        weights: The denoiser's part of its header, in present names.
        formats: How its weights become numbers.
        native: Whether it has ComfyUI's naming where that differs from Diffusers'.
    """

    path: Path
    weights: WeightFile
    formats: Formats
    native: bool


@dataclass(frozen=True, slots=True)
class Place:
    """Where a tensor of Diffusers' transformer lies.

    Attributes:
        file: The file.
        name: The name there, without prefix.
        rows: Its rows in that tensor, which may hold several: first, and the one behind the last.
        swapped: Whether its two halves are in the opposite order there.
    """

    file: BaseFile
    name: str
    rows: tuple[int, int]
    swapped: bool

    @property
    def shape(self) -> tuple[int, ...]:
        """The tensor's own shape."""
        whole = self.file.weights.tensors[self.name].shape
        return (self.rows[1] - self.rows[0], *whole[1:])


class BaseWeights:
    """An opened base; made by `open_base`.

    Attributes:
        path: The Diffusers folder or the single file.
        family: Its architecture.
        files: Its files of weights: one, or the shards of a folder.
        is_folder: Whether it is a Diffusers folder.
    """

    def __init__(self, path: Path, family: Family, files: tuple[BaseFile, ...]) -> None:
        self.path = path
        self.family = family
        self.files = files
        self.is_folder = path.is_dir()

    @property
    def native(self) -> bool:
        """Whether the names in its files are ComfyUI's, where those differ from Diffusers'."""
        return any(file.native for file in self.files)

    @cached_property
    def names(self) -> tuple[str, ...]:
        """Every tensor, by Diffusers' name; by ComfyUI's where only the way there is known."""
        names: list[str] = []
        for file in self.files:
            beside = file.formats.beside | self.family.files.single_file.markers
            for name, info in file.weights.tensors.items():
                if name not in beside and info.shape:
                    names += self._own_names(name) if file.native else [name]
        return tuple(names)

    @cached_property
    def modules(self) -> tuple[str, ...]:
        """Paths of the layers that have a weight of two axes or more and could be adapted."""
        known = self.family.layers.key_map.to_native
        found = (name.removesuffix(".weight") for name in self.names if name.endswith(".weight"))
        return tuple(
            module
            for module in found
            if known(module) is not None and len(self.shape(f"{module}.weight") or ()) >= 2
        )

    def place(self, name: str) -> Place | None:
        """Where a tensor is, by its name in Diffusers' transformer or the files; None for none."""
        file = self._files_by_name.get(name)
        if file is not None:
            return self._whole(file, name)
        if not self.native:
            return None
        origin = self.family.files.single_file.origin(name, True)
        file = None if origin is None else self._files_by_name.get(origin.name)
        if origin is None or file is None:
            return None
        rows = self._parts(file, origin.name).get(name)
        if rows is not None:
            return Place(file, origin.name, rows, swapped=False)
        return self._whole(file, origin.name, origin.swapped)

    def shape(self, name: str) -> tuple[int, ...] | None:
        """Shape of a tensor; None when the base has none of that name."""
        place = self.place(name)
        return None if place is None else place.shape

    def weight(self, module: str) -> Tensor:
        """A copy of a layer's weight, by the layer's path in Diffusers' transformer.

        `[out, in]`, or `[out, in, *kernel]` of a convolution; dequantized, in float32 (float64
        where it is stored so).

        Raises:
            BaseModelError: When the base has no such layer, or its file cannot be read.
        """
        return self.tensor(f"{module}.weight")

    def tensor(self, name: str) -> Tensor:
        """Read any tensor; as `weight`, by its whole name. `BaseModelError` where there is none."""
        import torch

        from ..weights.tensor_reader import TensorReader

        place = self.place(name)
        if place is None:
            raise BaseModelError(
                f"{self.path} has no {name}",
                f"a {self.family.title} base with this layer",
                "Choose the base that the adapter was trained on.",
            )
        file, (start, end) = place.file, place.rows
        reader = TensorReader(file.weights, file.formats, torch.device("cpu"))
        stored = file.weights.tensors[place.name].code
        dtype = torch.float64 if stored == "F64" else torch.float32
        if not place.swapped:
            return reader.read(place.name, [(start, end)], dtype)[0]
        middle = (start + end) // 2
        return torch.cat(reader.read(place.name, [(middle, end), (start, middle)], dtype))

    @cached_property
    def _files_by_name(self) -> Mapping[str, BaseFile]:
        return {name: file for file in self.files for name in file.weights.tensors}

    def _own_names(self, name: str) -> list[str]:
        """Diffusers' names of what a tensor of a file in ComfyUI's naming holds."""
        layer, _, kind = name.rpartition(".")
        parts = self.family.layers.key_map.parts(layer)
        if parts:
            return [f"{part.module}.{kind}" for part in parts]
        module = self.family.layers.key_map.to_module(layer)
        return [name if module is None else f"{module}.{kind}"]

    def _parts(self, file: BaseFile, name: str) -> Mapping[str, tuple[int, int]]:
        """Rows of each tensor inside a fused one; empty for one that is whole."""
        layer, _, kind = name.rpartition(".")
        parts = self.family.layers.key_map.parts(layer) if file.native else ()
        total, shares = file.weights.tensors[name].shape[0], sum(part.share for part in parts)
        if parts and total % shares:
            raise file.weights.broken(f"{name} has {total} rows", f"a multiple of {shares} rows")
        rows: dict[str, tuple[int, int]] = {}
        start = 0
        for part in parts:
            end = start + total // shares * part.share
            rows[f"{part.module}.{kind}"] = (start, end)
            start = end
        return rows

    def _whole(self, file: BaseFile, name: str, swapped: bool = False) -> Place:
        return Place(file, name, (0, file.weights.tensors[name].shape[0]), swapped)


def open_base(path: str | Path, family: str | None = None) -> BaseWeights:
    """Open a base that lies on this machine; no weight is read.

    It is a Diffusers folder (one file of weights or shards), a single file as ComfyUI has them
    (bf16, fp16, fp32, fp8 with or without scales, packed, GGUF), or ``embedded``. It has to be of a
    family, unless that is None.

    Raises:
        InputError: When the path is none, or the system does not let anybody look.
        BaseModelError: When it is missing, damaged, of no known or of another family, or in a
            number format that is not read.
    """
    if family is not None:
        get_family(family)  # an unknown name is told before the base is looked at
    if str(path) != EMBEDDED:
        given_path(str(path), "a base model")
    try:
        return _open(str(path), family)
    except OSError as error:
        raise BaseModelError(
            f"{error.filename or path} cannot be read ({error.strerror or error})",
            "a base model that can be read",
            "Check the path and its permissions.",
        ) from error
    except BaseModelError as error:
        # Here the base is a word of a command, or an input of a node, and no setting.
        found, remedy = (
            text.replace("base.path: ", "").replace("base.path", "the base")
            for text in (error.found, error.remedy)
        )
        raise BaseModelError(found, error.expected, remedy) from error


def _open(path: str, wanted: str | None) -> BaseWeights:
    place = Path(path).expanduser()
    is_file = path != EMBEDDED and place.is_file()
    weights = open_weights(place) if is_file else None
    name = detect_base(path) if weights is None else file_family(weights)
    if wanted not in (None, name):
        raise BaseModelError(
            f"{path} is a base of family {name}",
            f"a base of family {wanted}",
            "Leave the family out, or name another base.",
        )
    family = get_family(name)
    if weights is not None:
        return BaseWeights(place, family, (_base_file(weights, family),))
    # The same checks as before training: the folder is whole and holds this class.
    section = BaseSection(path=path)
    found = locate_base(section, family, has_controls=False, needs_encoders=False, to_train=False)
    files = [_base_file(open_weights(each), family) for each in shard_files(found.denoiser)]
    return BaseWeights(found.folder, family, tuple(files))


def _base_file(weights: WeightFile, family: Family) -> BaseFile:
    weights = family.files.single_file.tidy(weights)
    native = family.files.single_file.is_native(weights.tensors)
    return BaseFile(weights.path, weights, check_formats(weights), native)


Shape = tuple[int, ...]


def known_bases(family: Family) -> dict[str, Mapping[str, Any]]:
    """The bases whose sizes are known: the published ones, and the embedded one at the end.

    What messages call each, to its transformer's configuration.
    """
    usual = _config(family.files.single_file.configs / family.variants[0])
    published = family.layers.published or {f"{family.title} as published": {}}
    found = {title: {**usual, **own} for title, own in published.items()}
    return found | ({"the embedded base": _config(family.embedded)} if family.embedded else {})


def _config(folder: Path) -> Mapping[str, Any]:
    return read_json(folder / "transformer" / "config.json")


def known_sizes(family: Family) -> dict[str, PublishedSizes]:
    """The sizes of the layers of each of the `known_bases`."""
    return {title: family.layers.sizes(config) for title, config in known_bases(family).items()}


def is_installed(family: Family) -> bool:
    """Whether the installed libraries have the class of a family's transformer."""
    library, name = family.files.single_file.transformer.split(".")
    return hasattr(importlib.import_module(library), name)


def published_shapes(family: Family, title: str = "") -> dict[str, Shape]:
    """Shapes of the tensors of one of the `known_bases`, by ComfyUI's names; empty: of the first.

    Raises:
        BaseModelError: When the installed libraries have no class for it.
    """
    import torch

    bases = known_bases(family)
    library, name = family.files.single_file.transformer.split(".")
    if not is_installed(family):
        raise BaseModelError(
            f"the installed {library} has no {name}, the transformer of {family.title}",
            f"a version of {library} that has it",
            f"Update {library}, or name a base of another family.",
        )
    kind = getattr(importlib.import_module(library), name)
    with torch.device("meta"):
        model = kind.from_config(dict(bases[title or next(iter(bases))]))
    return _native(family, ((key, tuple(each.shape)) for key, each in model.state_dict().items()))


def base_shapes(base: BaseWeights) -> dict[str, Shape]:
    """As `published_shapes`, of a base that lies on this machine, from its headers."""
    shapes = ((name, base.shape(name) or ()) for name in base.names)
    return _native(base.family, shapes)


def _native(family: Family, shapes: Iterable[tuple[str, Shape]]) -> dict[str, Shape]:
    """Join what Diffusers keeps apart: the rows of a fused tensor are those of its parts."""
    found: dict[str, Shape] = {}
    for name, shape in shapes:
        origin = family.files.single_file.origin(name, True)
        native = name if origin is None else origin.name  # none where it has ComfyUI's already
        shape = shape if origin is None else origin.shape(shape)
        rows = found[native][0] if native in found else 0
        found[native] = (rows + shape[0], *shape[1:])
    return found
