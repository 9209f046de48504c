"""A file's layers as those of a family: with the trainer's names, and fused ones in parts."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from torch import Tensor

from ...adapters.kinds.registry import matrix_sizes
from ...errors import AdapterFileError
from ...types import LayerState
from ..factors.outlines import LazyMapping
from ..names.key_map import KeyMap, native_layer
from ..names.key_parsing import (
    DROP,
    PATCHES_TOLD,
    REPLACING,
    LayerMatch,
    match_layer,
    matching_families,
    native_modules,
    native_of_patch,
)
from ..names.row_slices import (
    WHOLE,
    InexactSliceError,
    RowSlice,
    owned_columns,
    put_rows,
    slice_layer,
)
from .file_content import FileContent, LazyLayers, LazyPatches, OutlinedTensors


@dataclass(frozen=True, slots=True)
class Source:
    """Where a layer of the trainer lies in a file.

    Attributes:
        name: The layer's name in the file.
        cut: The rows of it.
    """

    name: str
    cut: RowSlice


class MappedLayers(LazyMapping[LayerState]):
    """An open file's layers under the trainer's names; each look-up reads one.

    A fused layer is kept for as long as its parts are asked for in a row, and no longer.
    """

    def __init__(self, kind: str, layers: LazyLayers, sources: Mapping[str, Source]) -> None:
        super().__init__(sources)
        self._kind = kind
        self._layers = layers
        self._sources = sources
        self._fused: tuple[str, LayerState] | None = None

    def __getitem__(self, module: str) -> LayerState:
        source = self._sources[module]
        if source.cut.is_whole:
            self._fused = None
            return self._layers[source.name]
        if self._fused is None or self._fused[0] != source.name:
            self._fused = None  # before the next one is read
            self._fused = source.name, self._layers[source.name]
        return slice_layer(self._kind, self._fused[1], source.cut)

    def outline(self, module: str) -> LayerState:
        """A layer on the meta device, in the number format of the file; nothing is read."""
        source = self._sources[module]
        return slice_layer(self._kind, self._layers.outline(source.name), source.cut)


def map_layers(content: FileContent, key_map: KeyMap, others: Mapping[str, KeyMap]) -> MappedLayers:
    """Find the layers of a family that a file's layers are.

    Args:
        content: The open file.
        key_map: The family's names.
        others: Other families, to name the right one in a message.

    Raises:
        AdapterFileError: When a layer is not the family's, two names mean the same layer, or a
            fused layer has no parts of its kind.
    """
    sources: dict[str, Source] = {}
    taken: dict[str, str] = {}
    for name in content.layers:
        place = match_layer(name, key_map)
        if place is None:
            raise _no_layer(content, name, others)
        own = _sources(content, name, place)
        # An undivided layer has all of its modules.
        modules = [module for module, _ in place.modules] if place.native in own else own
        for module in modules:
            if module in taken:
                raise AdapterFileError(
                    f"{content.file.path}: {name!r} and another key both mean the layer {module!r}"
                    f" ({taken[module]!r})",
                    "one set of factors for each layer",
                    "The file mixes two adapters; use the one that you want.",
                )
            taken[module] = name
        sources |= own
    return MappedLayers(content.kind, content.layers, sources)


def map_patches(content: FileContent, key_map: KeyMap) -> LazyPatches:
    """Give weight patches ComfyUI's names.

    Those of parts of a fused layer are joined to one of the layer; parts without one do not change.

    Raises:
        AdapterFileError: When a name means no layer of the family, two mean the same, parts do not
            fit each other, or a layer has factors beside a weight patch.
    """
    layers: dict[str, OutlinedTensors] = {}
    parts: dict[str, dict[str, OutlinedTensors]] = {}
    for name, tensors in content.extras.items():
        _refuse_both(content, name, tensors)
        native, module = native_of_patch(name, key_map), None
        if native is None:
            module = _only_module(name, key_map)
            key = None if module is None else native_layer(key_map, module)
            native = None if key is None else key.name
        taken = native in layers or module in parts.get(native or "", {})
        if native is None or taken or (module is None and native in parts):
            raise _no_difference(content, name, tensors, known=native is not None)
        if module is None:
            layers[native] = tensors
        else:
            parts.setdefault(native, {})[module] = tensors
    for native, own in parts.items():
        if native in layers:
            raise _no_difference(content, native, layers[native], known=True)
        layers[native] = JoinedTensors(content.file.path, native, key_map, own)
    return LazyPatches(layers)


def _only_module(name: str, key_map: KeyMap) -> str | None:
    """The module that a name of a file means, where it is one as a whole."""
    place = match_layer(name, key_map)
    if place is None or len(place.modules) != 1 or not place.modules[0][1].is_whole:
        return None
    return place.modules[0][0]


def _refuse_both(content: FileContent, name: str, tensors: Iterable[str]) -> None:
    """Refuse factors beside a difference of the same weight: ComfyUI keeps only one of them."""
    both = REPLACING & set(tensors)
    if name in content.layers and both:
        raise AdapterFileError(
            f"{content.file.path}: {name} has factors and {f'{name}.{min(both)}'!r}",
            "one of them: ComfyUI loads the difference and passes over the factors",
            f"Take out the one that is not wanted. To leave out all differences: {DROP}.",
        )


def _no_difference(
    content: FileContent, name: str, tensors: Iterable[str], *, known: bool
) -> AdapterFileError:
    again = "a layer that another key means too" if known else "no layer"
    ending = next(iter(tensors))
    return AdapterFileError(
        f"{content.file.path}: {f'{name}.{ending}'!r}, {PATCHES_TOLD[ending]}, is for {again} of "
        "this family",
        "differences of the family's own layers",
        f"Check that the file is for this family. To leave out all that is no factor: {DROP}.",
    )


class JoinedTensors(OutlinedTensors):
    """Differences of parts of a fused layer, as those of the layer.

    Args:
        path: The file, for messages.
        native: ComfyUI's name of the layer.
        key_map: The family's names.
        parts: Module to its differences by ending.

    Raises:
        AdapterFileError: When the parts do not fit each other, or a new weight has not all of them.
    """

    def __init__(
        self, path: Path, native: str, key_map: KeyMap, parts: Mapping[str, OutlinedTensors]
    ) -> None:
        self._parts = parts
        self._cuts = dict(native_modules(native, key_map))
        self._shapes: dict[str, tuple[int, ...]] = {}
        for ending in dict.fromkeys(each for tensors in parts.values() for each in tensors):
            own = {m: t.outline()[ending].shape for m, t in parts.items() if ending in t}
            found = {self._whole(module, shape) for module, shape in own.items()}
            lacks = ending == "set_weight" and own.keys() != self._cuts.keys()
            if None in found or len(found) > 1 or lacks:
                shapes = " and ".join(f"{list(shape)} ({module})" for module, shape in own.items())
                raise AdapterFileError(
                    f"{path}: {ending} of parts of {native}: {shapes}",
                    "parts of one fused layer, with shares of its rows as in the family's bases",
                    f"Check that the file is for this family. To leave them out: {DROP}.",
                )
            self._shapes[ending] = found.pop() or ()
        super().__init__(self._shapes)

    def _whole(self, module: str, shape: tuple[int, ...]) -> tuple[int, ...] | None:
        """The fused layer's shape as a part tells it."""
        cut = self._cuts[module]
        share = sum(stop - start for start, stop in cut.ranges)
        return None if shape[0] % share else (shape[0] // share * cut.total, *shape[1:])

    def __getitem__(self, ending: str) -> Tensor:
        own = {m: tensors[ending] for m, tensors in self._parts.items() if ending in tensors}
        dtype = torch.float64 if torch.float64 in {t.dtype for t in own.values()} else torch.float32
        whole = torch.zeros(self._shapes[ending], dtype=dtype)
        for module, tensor in own.items():
            put_rows(whole, self._cuts[module], tensor)
        return whole

    def outline(self) -> dict[str, Tensor]:
        """All of them on the meta device, in the number format of the file."""
        dtypes: dict[str, torch.dtype] = {}
        for tensors in self._parts.values():
            for ending, outline in tensors.outline().items():
                dtypes[ending] = torch.promote_types(
                    dtypes.get(ending, outline.dtype), outline.dtype
                )
        return {
            ending: torch.empty(shape, dtype=dtypes[ending], device="meta")
            for ending, shape in self._shapes.items()
        }


def _sources(content: FileContent, name: str, place: LayerMatch) -> dict[str, Source]:
    """The modules that a layer of a file is; itself by ComfyUI's name where it stays undivided."""
    outline = content.layers.outline(name)
    cuts = [cut for _, cut in place.modules]
    found: dict[str, Source] = {}
    try:
        owned = owned_columns(
            content.kind,
            cuts,
            outline.tensors,
            lambda factor, first, last: content.layers.rows(name, factor, first, last),
        )
        for (module, cut), columns in zip(place.modules, owned, strict=True):
            if columns is not None:
                own = replace(cut, columns=columns)
                slice_layer(content.kind, outline, own)  # refuses what cannot be read
                found[module] = Source(name, own)
    except InexactSliceError as error:
        sizes = matrix_sizes(content.kind, outline)
        if place.native is not None and not sizes[0] % cuts[0].total:
            return {place.native: Source(name, WHOLE)}
        modules = ", ".join(module for module, _ in place.modules)
        raise AdapterFileError(
            f"{content.file.path}: {name} ({content.kind}) is one layer in the file and {modules} "
            f"here, and cannot be divided: {error}",
            "factors of the sizes that this family's layers have, and a slice whose parts end "
            "between the blocks of a LoKr's first factor, without DoRA on the input axis",
            "Check that the file is for this family. ComfyUI loads a slice as it is; the program "
            "that made it can make a LoRA of it.",
        ) from error
    return found


def _no_layer(content: FileContent, name: str, others: Mapping[str, KeyMap]) -> AdapterFileError:
    fitting = matching_families(content.layers, others)
    return AdapterFileError(
        f"{content.file.path}: {name!r} is no layer of this family",
        "layers of the chosen family",
        f"The file's layers are those of {' or '.join(fitting)}; choose that family."
        if fitting
        else "Check that the file is for this family.",
    )
