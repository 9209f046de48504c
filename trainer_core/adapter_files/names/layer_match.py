"""Which layer of a family a name in an adapter file means, in any spelling."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from .key_layouts import FLAT_PREFIXES, part_prefix
from .key_map import BLOCK_NUMBER, ComfyuiName, KeyMap
from .text_encoder_names import text_encoder_of, text_path

_INNER_PREFIX = re.compile(r"(base_model\.model|diffusion_model|transformer|unet|model|dit|pipe)\.")
"""Prefixes that some programs put behind another one, or in front of it; ComfyUI knows no two."""

Range = tuple[int, int]
"""From the first to behind the last."""


@dataclass(frozen=True, slots=True)
class RowSlice:
    """Rows of a layer, as shares of all of them.

    Attributes:
        ranges: Which shares, in the order in which they are wanted.
        total: Of how many.
        columns: For each pair of the kind's factors, the columns that are kept; empty keeps all.
    """

    ranges: tuple[Range, ...]
    total: int
    columns: tuple[tuple[Range, ...], ...] = ()

    @property
    def is_whole(self) -> bool:
        """Whether nothing is cut off or moved."""
        return self.ranges == ((0, self.total),) and not self.columns

    @property
    def permutes(self) -> bool:
        """Whether every row stays, if elsewhere."""
        return sum(stop - start for start, stop in self.ranges) == self.total


WHOLE = RowSlice(((0, 1),), 1)


@dataclass(frozen=True, slots=True)
class LayerRows:
    """Where a layer of the trainer lies in another, such as one that a file has fused.

    Attributes:
        name: The other layer's name.
        cut: The rows of it.
    """

    name: str
    cut: RowSlice


HALVES_SWAPPED = RowSlice(((1, 2), (0, 1)), 2)
"""Rows whose two halves lie in the opposite order in ComfyUI."""


@dataclass(frozen=True, slots=True)
class LayerMatch:
    """What a name of a file means in a family.

    Attributes:
        modules: Paths in the trainer's naming, each with the rows of the file's layer that it has.
        native: ComfyUI's name of the layer that holds all of these rows; None where the name means
            only a part of one, or one whose rows lie in another order there.
    """

    modules: tuple[tuple[str, RowSlice], ...]
    native: str | None


def match_layer(name: str, key_map: KeyMap) -> LayerMatch | None:
    """Find what a name of a file, with its prefix and in any spelling, means in a family."""
    text = text_path(name)
    if text is not None and text_encoder_of(text) in key_map.text_encoders:
        return LayerMatch(((text, WHOLE),), text)
    layout, rest = part_prefix(name)
    alias = _unaliased(rest, key_map)
    if alias is not None:
        return _by_native(alias, key_map) or _by_module(alias, key_map)
    if layout not in FLAT_PREFIXES.values():
        readers = (_by_native, _by_module) if layout == "comfyui" else (_by_module, _by_native)
        found = (reader(rest, key_map) for reader in readers)
        place = next((place for place in found if place is not None), None)
        if place is not None:
            return place
        inner = _INNER_PREFIX.match(rest)
        if inner is not None:
            return match_layer(rest[inner.end() :], key_map)
        rest = rest.replace(".", "_")  # some programs put it for a part of the dots
    rest = rest.rstrip("_")  # of the dot before the ending
    native, module = key_map.native_of_flat(rest), key_map.module_of_flat(rest)
    places = [
        None if native is None else _by_native(native, key_map) or _by_module(native, key_map),
        None if module is None else _by_module(module, key_map),
    ]
    ordered = places if layout in ("kohya", "comfyui") else reversed(places)
    found = itertools.chain(ordered, _flat_comfyui_matches(rest, key_map))
    return next((place for place in found if place is not None), None)


def native_modules(native: str, key_map: KeyMap) -> tuple[tuple[str, RowSlice], ...]:
    """The modules of one of ComfyUI's layers in order, each with its rows of it; or none."""
    place = _by_native(native, key_map)
    return () if place is None else place.modules


def part_slices(native: str, key_map: KeyMap) -> tuple[tuple[str, RowSlice], ...]:
    """The parts of a fused layer of ComfyUI's in order, each with its rows; or none."""
    return _cuts([(part.module, part.share) for part in key_map.parts(native)])


def native_of_patch(name: str, key_map: KeyMap) -> str | None:
    """Find ComfyUI's name of a layer with a weight patch, from its name in a file.

    Weight patches are also of layers that no factors are for, norms above all. None when the family
    has no such layer, or it is a part of one.
    """
    place = match_layer(name, key_map)
    if place is not None:
        return place.native
    layout, rest = part_prefix(name)
    for host in (each for each in key_map.comfyui_names if not each.of):
        for template in (host.path, host.native):
            flat = layout in FLAT_PREFIXES.values()
            block = _block(template.replace(".", "_") if flat else template, rest)
            if block is not None:
                return host.native.replace("{}", block, 1)
    return None


def is_native(native: str, key_map: KeyMap) -> bool:
    """Whether a family's model in ComfyUI has a layer of this name, norms among them."""
    return (
        key_map.to_module(native) is not None
        or bool(key_map.parts(native))
        or any(_block(host.native, native) is not None for host in key_map.comfyui_names)
    )


def unmatched_layers(names: Iterable[str], extras: Iterable[str], key_map: KeyMap) -> list[str]:
    """The names of a file's layers, and of those with weight patches, that a family lacks."""
    odd = [name for name in extras if native_of_patch(name, key_map) is None]
    return [name for name in (*names, *odd) if match_layer(name, key_map) is None]


def matching_families(
    names: Iterable[str], key_maps: Mapping[str, KeyMap], extras: Iterable[str] = ()
) -> list[str]:
    """Find the families, in order, that have every one of a file's layers and weight patches.

    Several where the names, as they are in the file, are common to them, and none for no names.
    """
    paths, odd = list(names), list(extras)
    if not paths and not odd:
        return []
    return [name for name, key_map in key_maps.items() if not unmatched_layers(paths, odd, key_map)]


def _unaliased(name: str, key_map: KeyMap) -> str | None:
    """ComfyUI's name of what another trainer gives a name of its own; None for other names."""
    for alias, native in key_map.aliases.items():
        block = _block(alias, name)
        if block is not None:
            return native.replace("{}", block, 1)
    return None


def _by_module(path: str, key_map: KeyMap) -> LayerMatch | None:
    key = key_map.to_native(path)
    if key is not None:
        return LayerMatch(((path, WHOLE),), None if key.part else key.name)
    host = _comfyui_name(path, key_map)
    if host is None:
        return None
    name, native = host
    if name.shares:
        return _slice(native, name.shares, key_map)
    return LayerMatch(((path, WHOLE),), None) if name.swapped else _by_native(native, key_map)


def _by_native(native: str, key_map: KeyMap) -> LayerMatch | None:
    module = key_map.to_module(native)
    if module is not None:
        return LayerMatch(((module, WHOLE),), native)
    swapped = next((h for h in key_map.swapped_names if h.native == native), None)
    if swapped is not None:
        return LayerMatch(((swapped.path, HALVES_SWAPPED),), native)
    parts = part_slices(native, key_map)
    if parts:
        return LayerMatch(parts, native)
    return _by_part(native, key_map)


def _by_part(native: str, key_map: KeyMap) -> LayerMatch | None:
    """A slice that ComfyUI names (``linear1_qkv``), or a part's number in OneTrainer's names."""
    fused, _, number = native.rpartition(".")
    parts = key_map.parts(fused)
    if parts and number in map(str, range(len(parts))):
        return LayerMatch(((parts[int(number)].module, WHOLE),), None)
    host = _comfyui_name(native, key_map)
    return _slice(host[1], host[0].shares, key_map) if host and host[0].shares else None


def _slice(native: str, shares: int, key_map: KeyMap) -> LayerMatch | None:
    """The parts of a fused layer that lie in its first shares; none where it is one module."""
    if not key_map.parts(native):
        return None
    starts = itertools.accumulate((part.share for part in key_map.parts(native)), initial=0)
    parts = [
        (part.module, part.share)
        for part, start in zip(key_map.parts(native), starts, strict=False)
        if start < shares
    ]
    return LayerMatch(_cuts(parts), None)


_NUMBER = re.compile(rf"(?<![^.])({BLOCK_NUMBER})(?![^.])")


def _comfyui_name(path: str, key_map: KeyMap) -> tuple[ComfyuiName, str] | None:
    """One of the names that only ComfyUI has, and the native name that it stands for there."""
    known = key_map.comfyui_paths
    if path in known:
        return known[path], known[path].native
    for number in _NUMBER.finditer(path):
        name = known.get(f"{path[: number.start()]}{{}}{path[number.end() :]}")
        if name is not None:
            return name, name.native.replace("{}", number[0], 1)
    return None


def _flat_comfyui_matches(flat: str, key_map: KeyMap) -> Iterator[LayerMatch | None]:
    path = key_map.flat_comfyui_paths.get(flat)
    if path is not None:
        yield _by_module(path, key_map)
    for name in key_map.comfyui_names:
        for template, reader in ((name.path, _by_module), (name.native, _by_native)):
            block = _block(template.replace(".", "_"), flat)
            if block is not None:
                yield reader(template.replace("{}", block, 1), key_map)


def _block(template: str, path: str) -> str | None:
    """The block's number where a path fits a template; empty for a template without one."""
    before, numbered, after = template.partition("{}")
    if not numbered:
        return "" if path == template else None
    number = path[len(before) : len(path) - len(after)]
    fits = path.startswith(before) and path.endswith(after) and re.fullmatch(BLOCK_NUMBER, number)
    return number if fits else None


def _cuts(parts: list[tuple[str, int]]) -> tuple[tuple[str, RowSlice], ...]:
    total, begin, cuts = sum(share for _, share in parts), 0, []
    for module, share in parts:
        cuts.append((module, RowSlice(((begin, begin + share),), total)))
        begin += share
    return tuple(cuts)
