"""How a family's layer names appear in adapter files."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass


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
class KeyMap:
    """A family's names, both ways.

    Attributes:
        to_native: Path of a module in the trainer's (Diffusers') naming to its native place;
            None when the family has no such layer.
        to_module: Native name of a whole layer to the module's path; None when it is unknown.
    """

    to_native: Callable[[str], NativeKey | None]
    to_module: Callable[[str], str | None]


NATIVE_PREFIX = "diffusion_model."
DIFFUSERS_PREFIX = "transformer."

FACTOR_SUFFIXES: dict[str, tuple[str, str]] = {
    ".lora_down.weight": ("lora", "lora_down"),
    ".lora_mid.weight": ("lora", "lora_mid"),
    ".lora_up.weight": ("lora", "lora_up"),
    ".lora_A.weight": ("lora", "lora_down"),
    ".lora_B.weight": ("lora", "lora_up"),
    ".hada_w1_a": ("loha", "hada_w1_a"),
    ".hada_w1_b": ("loha", "hada_w1_b"),
    ".hada_w2_a": ("loha", "hada_w2_a"),
    ".hada_w2_b": ("loha", "hada_w2_b"),
    ".hada_t1": ("loha", "hada_t1"),
    ".hada_t2": ("loha", "hada_t2"),
    ".lokr_w1": ("lokr", "lokr_w1"),
    ".lokr_w1_a": ("lokr", "lokr_w1_a"),
    ".lokr_w1_b": ("lokr", "lokr_w1_b"),
    ".lokr_w2": ("lokr", "lokr_w2"),
    ".lokr_w2_a": ("lokr", "lokr_w2_a"),
    ".lokr_w2_b": ("lokr", "lokr_w2_b"),
    ".lokr_t2": ("lokr", "lokr_t2"),
}
"""How a file's key ends, to the kind and the factor's name."""

LENGTHS_SUFFIXES = (".dora_scale", ".lora_magnitude_vector.weight", ".lora_magnitude_vector")
"""How the key of DoRA's lengths ends; the others than the first are PEFT's and Diffusers'."""

ALPHA_SUFFIX = ".alpha"
