"""`KeyMap`: how a family names its layers in files and in ComfyUI (data: `families/*/keys.py`).

`KeyMap` is what a family tells. From it and from the shapes of a base's weights `comfyui_table`
makes, without ComfyUI, the table that ComfyUI makes of its model: every name under which it takes a
tensor of an adapter, to a weight or to some rows of one. A test compares it with ComfyUI's own at
full size, both ways.

Source: ComfyUI 0.33, ``comfy/lora.py`` (`model_lora_keys_unet`).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property

from ...errors import AdapterError
from .text_encoder_names import comfyui_names, is_text_layer, kohya_name, text_encoder_of, text_path

BLOCK_NUMBER = "0|[1-9][0-9]*"
"""How a block is numbered, as a regular expression: ``00`` and other digits name no block."""


@dataclass(frozen=True, slots=True)
class NativeKey:
    """Where a layer lies in ComfyUI's own model of the family.

    Attributes:
        name: The native name of the layer, or of the fused layer that it is a part of.
        part: Whether the layer is only a slice of a fused native layer (such as q of qkv). Such a
            layer is written by its Diffusers name, which ComfyUI maps to the slice.
    """

    name: str
    part: bool = False


@dataclass(frozen=True, slots=True)
class Part:
    """One module's rows of a fused native layer.

    Attributes:
        module: The module's path in the trainer's naming.
        share: How many of the fused layer's rows it has, relative to the other parts' shares.
    """

    module: str
    share: int = 1


@dataclass(frozen=True, slots=True)
class ComfyuiName:
    """A name that ComfyUI knows besides those of the layers that can be adapted.

    It may be one of these too, where another name for the same place comes before it in ComfyUI's
    table.

    Attributes:
        path: In the trainer's naming, with ``{}`` for the block's number.
        native: ComfyUI's name of the layer; without spellings the base need not have it.
        swapped: Whether the two halves of the rows are in the opposite order there.
        shares: How many shares of the layer's rows it stands for; 0 for all.
        first: The first of them.
        of: How many shares the layer has; 0 for those of its parts (`Part`).
        spellings: As `KeyMap.comfyui_spellings`; empty for those.
    """

    path: str
    native: str
    swapped: bool = False
    shares: int = 0
    first: int = 0
    of: int = 0
    spellings: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class DiffusersNames:
    """What Diffusers calls layers that the trainer calls as ComfyUI does.

    Attributes:
        paths: Path of a module in the trainer's naming to that in Diffusers' model; empty where
            Diffusers' names are not known.
        prefix: What Diffusers' files have before it.
        in_kohya: Whether kohya's files have these names too, instead of ComfyUI's.
    """

    paths: Mapping[str, str] = field(default_factory=dict)
    prefix: str = ""
    in_kohya: bool = False


def _no_parts(native: str) -> tuple[Part, ...]:
    del native
    return ()


@dataclass(frozen=True)
class KeyMap:
    """A family's names, both ways.

    Attributes:
        to_native: Path of a module in the trainer's (Diffusers') naming to its native place;
            None when the family has no such layer.
        to_module: Native name of a whole layer to the module's path; None when it is unknown.
        parts: Native name of a fused layer to what lies in its rows, in order; empty for any other
            name.
        layers: Paths of every layer that `to_native` knows, with ``{}`` for a block's number.
        comfyui_spellings: How ComfyUI spells a layer besides its native name: ``{path}`` stands for
            the module's path, ``{flat}`` for that with ``_`` for each dot. Of two keys for the
            same layer it takes the one that is spelt as the later.
        comfyui_names: What ComfyUI names besides `layers`.
        native_only: Those of `layers` that ComfyUI knows by their native names alone.
        aliases: Names that another trainer has of its own to ComfyUI's, both with ``{}`` for the
            block's number. A layer that neither ComfyUI's model nor Diffusers' fuses stands for
            itself, and has `parts` too.
        fused_only: ComfyUI's names, with ``{}`` for the block's number, of fused layers for whose
            parts it has no names. Their parts are trained as one layer.
        text_encoders: The text encoders whose layers files may hold too (`with_text_encoders`), to
            how kohya's names of them begin.
        diffusers: Where the trainer's names are ComfyUI's, Diffusers' ones; None where the
            trainer's are Diffusers'.
    """

    to_native: Callable[[str], NativeKey | None]
    to_module: Callable[[str], str | None]
    parts: Callable[[str], tuple[Part, ...]] = _no_parts
    layers: tuple[str, ...] = ()
    comfyui_spellings: tuple[str, ...] = ()
    comfyui_names: tuple[ComfyuiName, ...] = ()
    aliases: Mapping[str, str] = field(default_factory=dict)
    native_only: frozenset[str] = frozenset()
    fused_only: tuple[str, ...] = ()
    text_encoders: Mapping[str, str] = field(default_factory=dict)
    diffusers: DiffusersNames | None = None

    def module_of_flat(self, flat: str) -> str | None:
        """Path of the module whose dots became ``_``; None when there is none."""
        return _unflattened(flat, self._flat_modules)

    def native_of_flat(self, flat: str) -> str | None:
        """Native name, of a whole or fused layer, whose dots became ``_``; None for others."""
        return _unflattened(flat, self._flat_natives)

    def is_divided(self, native: str) -> bool:
        """Whether a layer of ComfyUI's is several modules here, or has its halves swapped there."""
        swapped = any(name.native == native for name in self.swapped_names)
        return swapped or bool(self.parts(native))

    def is_comfyuis(self, native: str) -> bool:
        """Whether a fused layer is one of ComfyUI's model, and not of another program alone."""
        return self.aliases.get(template_of(native)) != template_of(native)

    def is_fused_only(self, native: str) -> bool:
        """Whether ComfyUI has no names for the parts of one of its layers."""
        return bool(self.fused_only) and template_of(native) in self.fused_only

    def is_native_only(self, path: str) -> bool:
        """Whether ComfyUI knows a layer by its native name alone."""
        return bool(self.native_only) and template_of(path) in self.native_only

    def whole_layers(self, paths: Iterable[str]) -> dict[str, tuple[str, ...]]:
        """The layers that are trained whole, by ComfyUI's name, to their parts in order."""
        if not self.fused_only:
            return {}
        found = {key.name for key in map(self.to_native, paths) if key is not None and key.part}
        return {
            native: tuple(part.module for part in self.parts(native))
            for native in sorted(found)
            if self.is_fused_only(native)
        }

    def kohya_name(self, native: str) -> str:
        """What kohya's trainers call one of ComfyUI's layers, with dots."""
        names = self.diffusers
        return names.paths.get(native, native) if names and names.in_kohya else native

    @cached_property
    def swapped_names(self) -> tuple[ComfyuiName, ...]:
        """Those of `comfyui_names` whose halves are swapped."""
        return tuple(name for name in self.comfyui_names if name.swapped)

    @cached_property
    def flat_comfyui_paths(self) -> dict[str, str]:
        """Paths of `comfyui_names` without a block's number, by what they are with ``_`` for dots.

        Those with one are found by `_block` of `key_parsing`.
        """
        return {p.replace(".", "_"): p for p in self.comfyui_paths if "{}" not in p}

    @cached_property
    def comfyui_paths(self) -> dict[str, ComfyuiName]:
        """`comfyui_names` by their paths; of several of one path the first."""
        return {name.path: name for name in reversed(self.comfyui_names)}

    @cached_property
    def _flat_modules(self) -> dict[str, str]:
        return {template.replace(".", "_"): template for template in self.layers}

    @cached_property
    def _flat_natives(self) -> dict[str, str]:
        found = ((each, self.to_native(each.replace("{}", "0", 1))) for each in self.layers)
        templates = [
            key.name.replace(".0.", ".{}.", 1) if "{}" in each else key.name
            for each, key in found
            if key is not None
        ]
        known = dict(zip(templates, templates, strict=True)) | dict(self.aliases)
        return {name.replace(".", "_"): native for name, native in known.items()}


def with_text_encoders(key_map: KeyMap, prefixes: Mapping[str, str]) -> KeyMap:
    """The names of a family whose files may hold text encoders' layers beside the denoiser's.

    Such a layer has its path for ComfyUI's name as well; how it is spelt in files is a matter of
    `text_names`. The prefixes are `KeyMap.text_encoders`.
    """

    def is_own(path: str) -> bool:
        return text_encoder_of(path) in prefixes and text_path(path) == path

    def to_native(path: str) -> NativeKey | None:
        return NativeKey(path) if is_own(path) else key_map.to_native(path)

    def to_module(native: str) -> str | None:
        return native if is_own(native) else key_map.to_module(native)

    return replace(key_map, to_native=to_native, to_module=to_module, text_encoders=prefixes)


def template_of(path: str) -> str:
    """A path with ``{}`` for the block's number."""
    return re.sub(rf"\.({BLOCK_NUMBER})(?=\.)", ".{}", path, count=1)


def _unflattened(flat: str, templates: dict[str, str]) -> str | None:
    if flat in templates:
        return templates[flat]
    # The block's number is the first between two lines; later ones belong to the layer's name.
    number = re.search(rf"_({BLOCK_NUMBER})_", flat)
    if number is None:
        return None
    template = templates.get(f"{flat[: number.start()]}_{{}}_{flat[number.end() :]}")
    return None if template is None else template.replace("{}", number.group(1), 1)


NATIVE_PREFIX = "diffusion_model."
DIFFUSERS_PREFIX = "transformer."
UNET_PREFIX = "unet."

MAGNITUDE_SUFFIXES = (".dora_scale", ".lora_magnitude_vector.weight", ".lora_magnitude_vector")
"""How the key of DoRA's magnitude ends; the others than the first are PEFT's and Diffusers'."""

ALPHA_SUFFIX = ".alpha"


Shapes = Mapping[str, tuple[int, ...]]
"""ComfyUI's name of a tensor of the base, such as ``img_in.weight``, to its shape."""

WEIGHT = ".weight"
_FLAT_NATIVE = "lora_unet_"
_NUMBERED = re.compile(r"(.+?)\.([0-9]+)\.")


@dataclass(frozen=True, slots=True)
class ComfyuiPlace:
    """What a name means in ComfyUI's model.

    Attributes:
        tensor: Native name of the tensor, with its ending, such as ``img_in.weight``.
        rows: First row and number of rows; None for all.
        swapped: Whether ComfyUI exchanges the two halves of the rows of what it adds.
    """

    tensor: str
    rows: tuple[int, int] | None = None
    swapped: bool = False

    def __str__(self) -> str:
        """The tensor and, of a part, its rows: ``name[first:end]``."""
        if self.rows is None:
            return self.tensor
        return f"{self.tensor}[{self.rows[0]}:{sum(self.rows)}]"

    def shape(self, shapes: Shapes) -> tuple[int, ...] | None:
        """Shape of what the name means; None when the base has no such tensor."""
        whole = shapes.get(self.tensor)
        if whole is None or self.rows is None:
            return whole
        return (self.rows[1], *whole[1:])


_OF_BIAS = ("diff_b", "b_norm")
MODULATION = ".modulation"
"""How the names of parameters end that are the weights of no layer: of Wan's blocks and head."""
_MODULATION_OF = re.compile(rf"((vace_)?blocks\.({BLOCK_NUMBER})|head)\{MODULATION}")


def bias_of(tensor: str) -> str:
    """Where ComfyUI looks for the bias beside a weight; it cuts off an ending of that length."""
    return f"{tensor[: -len(WEIGHT)]}.bias"


def patched_tensor(native: str, ending: str) -> str:
    """The tensor that a weight patch of a layer changes, by its ending (`AdapterState.extras`)."""
    if _MODULATION_OF.fullmatch(native):
        return native
    return f"{native}.bias" if ending in _OF_BIAS else native + WEIGHT


def comfyui_table(key_map: KeyMap, shapes: Shapes) -> dict[str, ComfyuiPlace]:
    """Make ComfyUI's table of names. Blocks of which a base has no tensors get none.

    Name in a file, without the ending of a factor, to its place, in ComfyUI's order: of two names
    for the same place it takes the later.
    """
    table: dict[str, ComfyuiPlace] = {}
    for tensor in shapes:
        if tensor.endswith(WEIGHT):
            path = tensor.removesuffix(WEIGHT)
            if is_text_layer(path):
                table |= {name: ComfyuiPlace(tensor) for name in comfyui_names(path)}
                continue
            table[_FLAT_NATIVE + path.replace(".", "_")] = ComfyuiPlace(tensor)
            table[NATIVE_PREFIX + path] = ComfyuiPlace(tensor)
        else:
            table[NATIVE_PREFIX + tensor] = ComfyuiPlace(tensor)
    for path, place, spellings in _other_names(key_map, shapes):
        for spelling in spellings:
            table[spelling.format(path=path, flat=path.replace(".", "_"))] = place
    return table


def part_rows(key_map: KeyMap, native: str, rows: int) -> dict[str, tuple[int, int]]:
    """Where the parts of a fused layer with so many rows lie: path to first row and number of rows.

    Empty when it is not fused, or when the rows cannot be divided so.
    """
    parts = key_map.parts(native)
    shares = sum(part.share for part in parts)
    if not shares or rows % shares:
        return {}
    unit, first, found = rows // shares, 0, {}
    for part in parts:
        found[part.module] = (first, unit * part.share)
        first += unit * part.share
    return found


def native_layer(key_map: KeyMap, module: str) -> NativeKey | None:
    """Where a module, or an undivided layer, lies in ComfyUI's model, also with swapped halves."""
    key = key_map.to_native(module)
    if key is not None:
        return key
    if key_map.is_divided(module):
        return NativeKey(module)
    # ComfyUI keeps the halves of such a layer in the opposite order, and exchanges them itself
    # where it is spelt by its Diffusers name.
    swapped = (name for name in key_map.swapped_names if name.path == module)
    return next((NativeKey(name.native) for name in swapped), None)


def native_key(name: str, key_map: KeyMap) -> NativeKey:
    """As `native_layer`, for a layer that has to be there; else `AdapterError`."""
    native = native_layer(key_map, name)
    if native is None:
        raise AdapterError(
            f"layer {name!r} has no native name in this family",
            "layers that the family's key map knows",
            "Use layout 'diffusers', or leave the layer out with adapter.exclude.",
        )
    return native


def is_swapped(name: str, key_map: KeyMap) -> bool:
    """Whether the two halves of a layer's rows are in the opposite order in ComfyUI's model."""
    return any(host.path == name for host in key_map.swapped_names)


def module_place(
    key_map: KeyMap, table: Mapping[str, ComfyuiPlace], module: str
) -> ComfyuiPlace | None:
    """What a module, or an undivided layer, is in ComfyUI's model by a table of `comfyui_table`."""
    if key_map.is_divided(module):
        return table.get(NATIVE_PREFIX + module)
    if is_text_layer(module):
        return table.get(kohya_name(module))
    for spelling in key_map.comfyui_spellings:
        place = table.get(spelling.format(path=module, flat=module.replace(".", "_")))
        if place is not None:
            return place
    key = key_map.to_native(module)
    return None if key is None or key.part else table.get(NATIVE_PREFIX + key.name)


def _other_names(
    key_map: KeyMap, shapes: Shapes
) -> Iterator[tuple[str, ComfyuiPlace, tuple[str, ...]]]:
    """Path, place and spellings of each name that is not simply the native one."""
    numbers = _block_numbers(shapes)
    for name in _known_names(key_map):
        for number in numbers.get(name.native.partition(".{}.")[0], ("",)):
            path, native = (text.replace("{}", number, 1) for text in (name.path, name.native))
            place = _place(key_map, shapes, path, native=native, name=name)
            if place is not None:
                yield path, place, name.spellings or key_map.comfyui_spellings


def _known_names(key_map: KeyMap) -> Iterable[ComfyuiName]:
    named = key_map.native_only.union(name.path for name in key_map.comfyui_names)
    for path in key_map.layers:
        key = key_map.to_native(path.replace("{}", "0", 1))
        if key is not None and path not in named:
            yield ComfyuiName(
                path, key.name.replace(".0.", ".{}.", 1) if "{}" in path else key.name
            )
    yield from key_map.comfyui_names


def _place(
    key_map: KeyMap, shapes: Shapes, path: str, native: str, name: ComfyuiName
) -> ComfyuiPlace | None:
    tensor = patched_tensor(native, "diff")
    if name.spellings and tensor not in shapes:
        return None
    key = key_map.to_native(path)
    if key is not None and key.part and key_map.is_fused_only(native):
        return None
    if not name.shares and (key is None or not key.part):
        return ComfyuiPlace(tensor, swapped=name.swapped)
    if tensor not in shapes:
        return None
    rows = part_rows(key_map, native, shapes[tensor][0])
    if name.shares:
        unit = shapes[tensor][0] // (name.of or sum(part.share for part in key_map.parts(native)))
        return ComfyuiPlace(tensor, (unit * name.first, unit * name.shares))
    return ComfyuiPlace(tensor, rows[path]) if path in rows else None


def _block_numbers(shapes: Shapes) -> dict[str, tuple[str, ...]]:
    """Name of a list of blocks to the numbers that it has."""
    found: dict[str, set[int]] = {}
    for tensor in shapes:
        block = _NUMBERED.match(tensor)
        if block is not None:
            found.setdefault(block.group(1), set()).add(int(block.group(2)))
    return {name: tuple(map(str, sorted(numbers))) for name, numbers in found.items()}
