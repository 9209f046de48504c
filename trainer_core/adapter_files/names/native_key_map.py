"""The names of a denoiser that is trained as ComfyUI has it: every layer by ComfyUI's own path.

ComfyUI reads such layers of any model by two spellings. What other programs read is another
matter: they have a name of their own for each layer, and of these only those of Stable Diffusion's
UNets and of models of videos are known without a family (`unet_names`, `video_model_names`).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

from .key_map import (
    BLOCK_NUMBER,
    UNET_PREFIX,
    ComfyuiName,
    DiffusersNames,
    KeyMap,
    NativeKey,
    Part,
    template_of,
)
from .unet_names import UnetNames, unet_names
from .video_model_names import VideoModel, video_model

_FLAT = ("lora_unet_{flat}", "lycoris_{flat}")
_DOTTED = ("{path}", "unet.{path}")
_CLASSES = {"add_embedding.": "class_embedding."}
"""Diffusers has one of two names for the layers that read a label; ComfyUI knows both."""


def native_key_map(layers: Iterable[str], modules: Iterable[str] | None = None) -> KeyMap:
    """Make the names of a denoiser of which only its own paths are known: ComfyUI's own.

    Adapters are for its Linear layers and convolutions. A UNet is known by all modules that have
    weights, norms among them; None takes the layers alone.
    """
    paths = tuple(layers)
    known = frozenset(paths)

    def to_native(path: str) -> NativeKey | None:
        return NativeKey(path) if path in known else None

    def to_module(native: str) -> str | None:
        return native if native in known else None

    every = paths if modules is None else tuple(modules)
    video = video_model(frozenset(every))
    if video is not None:
        return video_key_map(video, paths)
    unet = unet_names(every)
    return KeyMap(
        to_native,
        to_module,
        layers=paths,
        # A key map that says how ComfyUI spells a layer has its files proved.
        comfyui_spellings=("diffusion_model.{path}",),
        comfyui_names=() if unet is None else tuple(_names_of_unet(unet)),
        diffusers=DiffusersNames()
        if unet is None
        else DiffusersNames(unet.diffusers, UNET_PREFIX, in_kohya=not unet.is_sdxl),
    )


def video_key_map(video: VideoModel, layers: Iterable[str] = ()) -> KeyMap:
    """Make the names of a model of videos with these layers.

    Where only the model is known there are none, and any number of blocks.
    """
    paths = tuple(layers) or tuple(video.layers)
    known = frozenset(paths)
    fused = {part.module: native for native, parts in video.parts.items() for part in parts}

    def is_layer(path: str) -> bool:
        return path in known or (not layers and template_of(path) in known)

    def to_native(path: str) -> NativeKey | None:
        if is_layer(path):
            return NativeKey(path)
        template = template_of(path)
        if template not in fused:
            return None
        native = _numbered(fused[template], path)
        return NativeKey(native, part=True) if is_layer(native) else None

    def parts(native: str) -> tuple[Part, ...]:
        own = video.parts.get(template_of(native), ())
        return tuple(Part(_numbered(part.module, native), part.share) for part in own)

    return KeyMap(
        to_native,
        lambda native: native if is_layer(native) else None,
        parts,
        layers=(*paths, *fused),
        comfyui_spellings=video.spellings,
        comfyui_names=video.comfyui_names(),
        aliases=video.aliases(),
        fused_only=tuple(video.parts),
        diffusers=DiffusersNames(),
    )


def _numbered(template: str, path: str) -> str:
    """A template with the number of a path's block."""
    number = re.search(rf"\.({BLOCK_NUMBER})\.", path)
    return template.replace("{}", number[1], 1) if number else template


def _names_of_unet(unet: UnetNames) -> Iterator[ComfyuiName]:
    """ComfyUI's other names of a UNet's layers, in its order.

    Source: ComfyUI 0.33, ``comfy/lora.py`` (`model_lora_keys_unet`).
    """
    for native, path in unet.diffusers.items():
        yield from _names_of_layer(native, path)
        for own, other in _CLASSES.items():
            if path.startswith(own):
                yield from _names_of_layer(native, other + path.removeprefix(own))


def _names_of_layer(native: str, path: str) -> Iterator[ComfyuiName]:
    # The dotted names are those that the first adapters of Diffusers had.
    old = path.replace(".to_", ".processor.to_")
    old = old.removesuffix(".0") if old.endswith(".to_out.0") else old
    if old == path:
        yield ComfyuiName(path, native, spellings=(*_FLAT, *_DOTTED))
    else:
        yield ComfyuiName(path, native, spellings=_FLAT)
        yield ComfyuiName(old, native, spellings=_DOTTED)
