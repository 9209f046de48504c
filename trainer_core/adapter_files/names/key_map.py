"""How a family's layer names appear in adapter files."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property

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

    Attributes:
        path: In the trainer's naming, with ``{}`` for the block's number.
        native: ComfyUI's name of the layer; the base need not have it.
        swapped: Whether the two halves of the rows are in the opposite order there.
        shares: How many of a fused layer's first shares (`Part`) it stands for; 0 for all.
        spellings: As `KeyMap.comfyui_spellings`; empty for those.
    """

    path: str
    native: str
    swapped: bool = False
    shares: int = 0
    spellings: tuple[str, ...] = ()


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
        aliases: Names that another trainer has of its own to ComfyUI's, both with ``{}`` for the
            block's number.
    """

    to_native: Callable[[str], NativeKey | None]
    to_module: Callable[[str], str | None]
    parts: Callable[[str], tuple[Part, ...]] = _no_parts
    layers: tuple[str, ...] = ()
    comfyui_spellings: tuple[str, ...] = ()
    comfyui_names: tuple[ComfyuiName, ...] = ()
    aliases: Mapping[str, str] = field(default_factory=dict)

    def module_of_flat(self, flat: str) -> str | None:
        """Path of the module whose dots became ``_``; None when there is none."""
        return _unflattened(flat, self._flat_modules)

    def native_of_flat(self, flat: str) -> str | None:
        """Native name, of a whole or fused layer, whose dots became ``_``; None for others."""
        return _unflattened(flat, self._flat_natives)

    def is_divided(self, native: str) -> bool:
        """Whether one of ComfyUI's layers is several modules here, or has its halves swapped there.

        Args:
            native: ComfyUI's name of a layer.
        """
        swapped = any(name.swapped and name.native == native for name in self.comfyui_names)
        return swapped or bool(self.parts(native))

    @cached_property
    def _flat_modules(self) -> dict[str, str]:
        return {template.replace(".", "_"): template for template in self.layers}

    @cached_property
    def _flat_natives(self) -> dict[str, str]:
        found = (self.to_native(template.replace("{}", "0", 1)) for template in self.layers)
        templates = [key.name.replace(".0.", ".{}.", 1) for key in found if key is not None]
        return {template.replace(".", "_"): template for template in templates}


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

MAGNITUDE_SUFFIXES = (".dora_scale", ".lora_magnitude_vector.weight", ".lora_magnitude_vector")
"""How the key of DoRA's magnitude ends; the others than the first are PEFT's and Diffusers'."""

ALPHA_SUFFIX = ".alpha"
