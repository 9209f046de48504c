"""Weight patches of a file by ComfyUI's names: joined from parts, or divided into them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from functools import reduce
from pathlib import Path

import torch
from torch import Tensor

from ...errors import AdapterFileError
from ..factors.outlines import LazyMapping
from ..factors.split_fused import put_rows, take_rows
from ..names.key_layouts import DROP, PATCHES_TOLD, REPLACING
from ..names.key_map import KeyMap, native_layer
from ..names.layer_match import (
    WHOLE,
    RowSlice,
    match_layer,
    native_modules,
    native_of_patch,
    part_slices,
)
from .adapter_file import AdapterFile, Patches, patches_of


def map_patches(file: AdapterFile, key_map: KeyMap) -> Patches:
    """Give weight patches ComfyUI's names.

    Those of parts of a fused layer are joined to one of the layer; parts without one do not change.

    Raises:
        AdapterFileError: When a name means no layer of the family, two mean the same, parts do not
            fit each other, or a layer has factors beside a weight patch.
    """
    layers: dict[str, LazyMapping[Tensor]] = {}
    parts: dict[str, dict[str, LazyMapping[Tensor]]] = {}
    for name, tensors in file.extras.items():
        _refuse_both(file, name, tensors)
        for native, module, own in _patch_places(name, tensors, key_map):
            taken = native in layers or module in parts.get(native or "", {})
            if native is None or taken or (module is None and native in parts):
                raise _no_difference(file, name, tensors, known=native is not None)
            if module is None:
                layers[native] = own
            else:
                parts.setdefault(native, {})[module] = own
    for native, own in parts.items():
        if native in layers:
            raise _no_difference(file, native, layers[native], known=True)
        layers[native] = _joined(file.path, native, key_map, own)
    return patches_of(layers)


def _patch_places(
    name: str, tensors: LazyMapping[Tensor], key_map: KeyMap
) -> Iterator[tuple[str | None, str | None, LazyMapping[Tensor]]]:
    """ComfyUI's layer, the module where it is a part of that, and the patches of both."""
    native = native_of_patch(name, key_map)
    if native is not None and key_map.is_comfyuis(native):
        yield native, None, tensors
        return
    module = _only_module(name, key_map)
    cuts = native_modules(native, key_map) if native else ((module or "", WHOLE),)
    for each, cut in cuts:
        key = native_layer(key_map, each)
        own = tensors if cut.is_whole else _cut(tensors, cut)
        yield (key.name if key else None), (each if key and (key.part or not native) else None), own


def _cut(tensors: LazyMapping[Tensor], cut: RowSlice) -> LazyMapping[Tensor]:
    """Rows of a layer's weight patches."""
    return LazyMapping(
        tensors,
        lambda ending: take_rows(tensors[ending], cut),
        lambda ending: take_rows(tensors.outline(ending), cut),
    )


def _only_module(name: str, key_map: KeyMap) -> str | None:
    """The module that a name of a file means, where it is one as a whole."""
    place = match_layer(name, key_map)
    if place is None or len(place.modules) != 1 or not place.modules[0][1].is_whole:
        return None
    return place.modules[0][0]


def _refuse_both(file: AdapterFile, name: str, tensors: Iterable[str]) -> None:
    """Refuse factors beside a difference of the same weight: ComfyUI keeps only one of them."""
    both = REPLACING & set(tensors)
    if name in file.layers and both:
        raise AdapterFileError(
            f"{file.path}: {name} has factors and {f'{name}.{min(both)}'!r}",
            "one of them: ComfyUI loads the difference and passes over the factors",
            f"Take out the one that is not wanted. To leave out all differences: {DROP}.",
        )


def _no_difference(
    file: AdapterFile, name: str, tensors: Iterable[str], *, known: bool
) -> AdapterFileError:
    again = "a layer that another key means too" if known else "no layer"
    ending = next(iter(tensors))
    return AdapterFileError(
        f"{file.path}: {f'{name}.{ending}'!r}, {PATCHES_TOLD[ending]}, is for {again} of "
        "this family",
        "differences of the family's own layers",
        f"Check that the file is for this family. To leave out all that is not a factor: {DROP}.",
    )


def _joined(
    path: Path, native: str, key_map: KeyMap, parts: Mapping[str, LazyMapping[Tensor]]
) -> LazyMapping[Tensor]:
    """Weight patches of parts as those of the fused layer; parts without one do not change."""
    cuts = dict((*native_modules(native, key_map), *part_slices(native, key_map)))

    def whole(module: str, shape: tuple[int, ...]) -> tuple[int, ...] | None:
        """The fused layer's shape as a part tells it."""
        share = sum(stop - start for start, stop in cuts[module].ranges)
        return None if shape[0] % share else (shape[0] // share * cuts[module].total, *shape[1:])

    shapes: dict[str, tuple[int, ...]] = {}
    for ending in dict.fromkeys(each for tensors in parts.values() for each in tensors):
        own = {
            m: tensors.outline(ending).shape for m, tensors in parts.items() if ending in tensors
        }
        found = {whole(module, shape) for module, shape in own.items()}
        lacks = ending == "set_weight" and own.keys() != cuts.keys()
        if None in found or len(found) > 1 or lacks:
            sizes = " and ".join(f"{list(shape)} ({module})" for module, shape in own.items())
            raise AdapterFileError(
                f"{path}: {ending} of parts of {native}: {sizes}",
                "parts of one fused layer, with shares of its rows as in the family's bases",
                f"Check that the file is for this family. To leave them out: {DROP}.",
            )
        shapes[ending] = found.pop() or ()

    def read(ending: str) -> Tensor:
        own = {m: tensors[ending] for m, tensors in parts.items() if ending in tensors}
        dtype = torch.float64 if torch.float64 in {t.dtype for t in own.values()} else torch.float32
        joined = torch.zeros(shapes[ending], dtype=dtype)
        for module, tensor in own.items():
            put_rows(joined, cuts[module], tensor)
        return joined

    def outline(ending: str) -> Tensor:
        dtypes = [each.outline(ending).dtype for each in parts.values() if ending in each]
        dtype = reduce(torch.promote_types, dtypes)
        return torch.empty(shapes[ending], dtype=dtype, device="meta")

    return LazyMapping(shapes, read, outline)
