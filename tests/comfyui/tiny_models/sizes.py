"""What a tiny MODEL of each of ComfyUI's classes is made of: ``sizes.yaml``."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any

import yaml

WIDTH = 32
"""Of the texts, and of the transformers where nothing asks for more."""


@dataclass(frozen=True)
class TinySizes:
    """One tiny MODEL, with the CLIP and the VAE that fit it.

    Attributes:
        config: Name of the class in ``comfy.supported_models``.
        unet: Its ``unet_config``.
        text: Name of the CLIP (`texts.KINDS`).
        vae: Name of the VAE (`vaes.KINDS`).
        marks: Entries of a state dict by which the class chooses its kind of prediction.
        pixels: Sides of an image in the tests: of a UNet so many that its middle block has more
            than one token, whose attention has a gradient; PixArt divides by zero below 257.
        vision: Sizes of the CLIP_VISION that it reads its first frame by; empty where it has none.
    """

    config: str
    unet: Mapping[str, Any]
    text: str
    vae: str
    marks: Mapping[str, Any] = field(default_factory=dict)
    pixels: int = 64
    vision: Mapping[str, Any] = field(default_factory=dict)


class _Loader(yaml.SafeLoader):
    """Knows ``!tuple``, which some of ComfyUI's classes ask for."""


_Loader.add_constructor("!tuple", lambda loader, node: tuple(loader.construct_sequence(node)))


def _read(group: str) -> dict[str, TinySizes]:
    text = Path(__file__).with_name("sizes.yaml").read_text(encoding="utf-8")
    models = yaml.load(text, _Loader)[group]
    return {name: TinySizes(**values) for name, values in models.items()}


TINY: Mapping[str, TinySizes] = MappingProxyType(_read("models"))
"""Every tiny MODEL of images, and of clips that are made of a text, by its name."""

BEGINNING: Mapping[str, TinySizes] = MappingProxyType(_read("beginning"))
"""Those of clips that begin with an image."""

SOUNDING: Mapping[str, TinySizes] = MappingProxyType(_read("sounding"))
"""Those that make nothing without sound."""
