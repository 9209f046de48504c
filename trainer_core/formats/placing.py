"""A file's layers as those of a family: with the trainer's names, and fused ones in parts."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

from ..errors import AdapterFileError
from ..types import LayerState
from .content import FileContent, LazyExtras, LazyLayers, LazyTensors
from .fusing import matrix_sizes
from .keys import KeyMap
from .spellings import Place, find_place, matching_families, native_of_extra
from .splitting import WHOLE, Cut, InexactCutError, cut_layer, owned_columns


@dataclass(frozen=True, slots=True)
class Source:
    """Where a layer of the trainer lies in a file.

    Attributes:
        name: The layer's name in the file.
        cut: The rows of it.
    """

    name: str
    cut: Cut


class PlacedLayers(Mapping[str, LayerState]):
    """An open file's layers under the trainer's names; each look-up reads one.

    A fused layer is kept for as long as its parts are asked for in a row, and no longer.
    """

    def __init__(self, kind: str, layers: LazyLayers, sources: Mapping[str, Source]) -> None:
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
        return cut_layer(self._kind, self._fused[1], source.cut)

    def __iter__(self) -> Iterator[str]:
        return iter(self._sources)

    def __len__(self) -> int:
        return len(self._sources)

    def __contains__(self, module: object) -> bool:
        return module in self._sources

    def outline(self, module: str) -> LayerState:
        """A layer on the meta device, in the number format of the file; nothing is read."""
        source = self._sources[module]
        return cut_layer(self._kind, self._layers.outline(source.name), source.cut)


def place_layers(
    content: FileContent, key_map: KeyMap, others: Mapping[str, KeyMap]
) -> PlacedLayers:
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
        place = find_place(name, key_map)
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
    return PlacedLayers(content.kind, content.layers, sources)


def place_extras(content: FileContent, key_map: KeyMap) -> LazyExtras:
    """Give differences that are no factors ComfyUI's names.

    Raises:
        AdapterFileError: When a name means no layer, or only a part of one.
    """
    layers: dict[str, LazyTensors] = {}
    for name, tensors in content.extras.items():
        native = native_of_extra(name, key_map)
        if native is None or native in layers:
            again = "a layer that another key means too" if native else "no whole layer"
            raise AdapterFileError(
                f"{content.file.path}: {f'{name}.{next(iter(tensors))}'!r} is for {again} of this "
                "family",
                "differences of ComfyUI's own layers",
                "Check that the file is for this family.",
            )
        layers[native] = tensors
    return LazyExtras(layers)


def _sources(content: FileContent, name: str, place: Place) -> dict[str, Source]:
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
                cut_layer(content.kind, outline, own)  # refuses what cannot be read
                found[module] = Source(name, own)
    except InexactCutError as error:
        sizes = matrix_sizes(content.kind, outline.tensors)
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
