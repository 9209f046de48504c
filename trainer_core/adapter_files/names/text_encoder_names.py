"""How adapter files call the layers of CLIP-L and CLIP-G, which denoisers read their texts from.

In the trainer they are parts of the denoiser when they are trained: ``text_encoder`` and
``text_encoder_2``, with layers below ``text_model`` as transformers had them up to version 4 and as
files have them to this day. These paths stand for ComfyUI's names of the layers, too.

Source: ComfyUI 0.33, ``comfy/lora.py`` (`model_lora_keys_clip`); Diffusers 0.42,
``loaders/lora_base.py`` (`_load_lora_into_text_encoder`); kohya's ``networks/lora.py``,
``networks/lora_flux.py``.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from types import MappingProxyType

TEXT_ENCODER = "text_encoder"
"""What CLIP-L is called as a part of a denoiser, and as a folder of a Diffusers base."""

TEXT_ENCODER_2 = "text_encoder_2"
"""What CLIP-G is called beside CLIP-L."""

KOHYA_PREFIXES: Mapping[str, str] = MappingProxyType(
    {TEXT_ENCODER: "lora_te1_", TEXT_ENCODER_2: "lora_te2_"}
)
"""How kohya's names of each begin, where a model has several text encoders."""

KOHYA_PREFIX_ALONE = "lora_te_"
"""How kohya's names of CLIP-L begin, where it is the only text encoder."""

_HOSTS = {
    TEXT_ENCODER: ("text_encoders.clip_l.transformer", (KOHYA_PREFIX_ALONE, "lora_te1_")),
    TEXT_ENCODER_2: ("text_encoders.clip_g.transformer", ("lora_te2_",)),
}
"""ComfyUI's own name of each, and the flat ones that it knows, in its order."""

_STEM = "text_model.encoder.layers"
_LAYERS = (
    *(f"self_attn.{name}_proj" for name in ("k", "out", "q", "v")),
    *("mlp.fc1", "mlp.fc2"),
)
_NUMBER = "0|[1-9][0-9]*"
_BY_FLAT = {name.replace(".", "_"): name for name in _LAYERS}
_BY_DOTTED_ROOT = {root: name for name, (host, _) in _HOSTS.items() for root in (name, host)}
_BY_FLAT_ROOT = {root: name for name, (_, flat) in _HOSTS.items() for root in flat}


def _any_of(names: Iterable[str]) -> str:
    return "|".join(map(re.escape, names))


_DOTTED = re.compile(
    rf"({_any_of(_BY_DOTTED_ROOT)})\.{re.escape(_STEM)}\.({_NUMBER})\.({_any_of(_LAYERS)})"
)
_FLAT = re.compile(
    rf"({_any_of(_BY_FLAT_ROOT)}){_STEM.replace('.', '_')}_({_NUMBER})_({_any_of(_BY_FLAT)})"
)

TARGETS = (
    rf"{TEXT_ENCODER}(_2)?\.{re.escape(_STEM)}\.\d+\.(self_attn\.(k|out|q|v)_proj|mlp\.fc[12])"
)
"""Regular expression of the layers that are adapted: all for which files have names."""


def is_text_layer(path: str) -> bool:
    """Whether the path of a layer is one of a text encoder's."""
    return text_encoder_of(path) in _HOSTS


def text_encoder_of(path: str) -> str:
    """What the path of a text encoder's layer begins with: the name of that text encoder."""
    return path.partition(".")[0]


def text_layers(names: Iterable[str]) -> list[str]:
    """Those of some layers that are a text encoder's."""
    return [name for name in names if is_text_layer(name)]


def text_path(name: str) -> str | None:
    """The path of a layer that a file calls by this name, in any spelling; None for other names."""
    found = _DOTTED.fullmatch(name)
    if found is not None:
        return f"{_BY_DOTTED_ROOT[found[1]]}.{_STEM}.{found[2]}.{found[3]}"
    found = _FLAT.fullmatch(name.replace(".", "_"))  # some programs keep dots behind the prefix
    if found is None:
        return None
    return f"{_BY_FLAT_ROOT[found[1]]}.{_STEM}.{found[2]}.{_BY_FLAT[found[3]]}"


def kohya_name(path: str, prefixes: Mapping[str, str] = KOHYA_PREFIXES) -> str:
    """A layer's name in kohya's files, which every ComfyUI knows; see `KeyMap.text_encoders`."""
    encoder, _, rest = path.partition(".")
    return f"{prefixes[encoder]}{rest.replace('.', '_')}"


def comfyui_names(path: str) -> tuple[str, ...]:
    """All names by which ComfyUI knows a layer; of two in a file it takes the later."""
    encoder, _, rest = path.partition(".")
    host, prefixes = _HOSTS[encoder]
    flat = rest.replace(".", "_")
    return f"{host}.{rest}", *(prefix + flat for prefix in prefixes), path
