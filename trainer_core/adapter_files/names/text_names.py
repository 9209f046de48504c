"""How adapter files call the layers of CLIP-L, which some denoisers read their pooled text from.

In the trainer CLIP-L is a part of the denoiser when it is trained: ``text_encoder``, with layers
below ``text_model`` as transformers had them up to version 4 and as files have them to this day.
These paths stand for ComfyUI's names of the layers, too.

Source: ComfyUI 0.33, ``comfy/lora.py`` (`model_lora_keys_clip`); Diffusers 0.42,
``loaders/lora_base.py`` (`_load_lora_into_text_encoder`); kohya's ``networks/lora_flux.py``.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

TEXT_ENCODER = "text_encoder"
"""What CLIP-L is called as a part of a denoiser, and as a folder of a Diffusers base."""

_STEM = "text_model.encoder.layers"
_LAYERS = (
    *(f"self_attn.{name}_proj" for name in ("k", "out", "q", "v")),
    *("mlp.fc1", "mlp.fc2"),
)
_NUMBER = "0|[1-9][0-9]*"
_BY_FLAT = {name.replace(".", "_"): name for name in _LAYERS}
_DOTTED = re.compile(
    rf"(?:{TEXT_ENCODER}|text_encoders\.clip_l\.transformer)\.{re.escape(_STEM)}"
    rf"\.({_NUMBER})\.({'|'.join(map(re.escape, _LAYERS))})"
)
_FLAT = re.compile(rf"lora_te1?_{_STEM.replace('.', '_')}_({_NUMBER})_({'|'.join(_BY_FLAT)})")

TARGETS = rf"{TEXT_ENCODER}\.{re.escape(_STEM)}\.\d+\.(self_attn\.(k|out|q|v)_proj|mlp\.fc[12])"
"""Regular expression of the layers that are adapted: all for which files have names."""


def is_text_layer(path: str) -> bool:
    """Whether the path of a layer is one of the text encoder's."""
    return path.startswith(f"{TEXT_ENCODER}.")


def text_layers(names: Iterable[str]) -> list[str]:
    """Those of some layers that are the text encoder's."""
    return [name for name in names if is_text_layer(name)]


def text_path(name: str) -> str | None:
    """The path of a layer that a file calls by this name, in any spelling; None for other names."""
    found = _DOTTED.fullmatch(name)
    if found is not None:
        return f"{TEXT_ENCODER}.{_STEM}.{found[1]}.{found[2]}"
    found = _FLAT.fullmatch(name)
    return None if found is None else f"{TEXT_ENCODER}.{_STEM}.{found[1]}.{_BY_FLAT[found[2]]}"


def kohya_name(path: str) -> str:
    """A layer's name in kohya's files, which every ComfyUI knows."""
    return f"lora_te1_{path.removeprefix(f'{TEXT_ENCODER}.').replace('.', '_')}"


def comfyui_names(path: str) -> tuple[str, ...]:
    """All names by which ComfyUI knows a layer; of two in a file it takes the later."""
    rest = path.removeprefix(f"{TEXT_ENCODER}.")
    flat = rest.replace(".", "_")
    generic = f"text_encoders.clip_l.transformer.{rest}"
    return generic, f"lora_te_{flat}", f"lora_te1_{flat}", path
