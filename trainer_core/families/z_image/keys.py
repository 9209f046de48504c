"""Names of Z-Image's layers, Diffusers' and ComfyUI's both ways, and its single files.

ComfyUI's model fuses q, k and v of a block, which Diffusers keeps apart: such a layer is a slice
there (`NativeKey.part`). A single file is in ComfyUI's naming (that of Tongyi's own code) or in
Diffusers'.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from ...adapter_files.names.key_map import ComfyuiName
from ...weights.file_spec import FileSpec
from ...weights.header import WeightFile
from ..diffusers_parts import layer_names, names_in, origin_by_names
from ..published_sizes import PublishedSizes

STACKS = ("noise_refiner", "context_refiner", "layers")
"""The lists of blocks, in the order in which they run."""

_BLOCK = {
    "attention.to_q": "attention.qkv",
    "attention.to_k": "attention.qkv",
    "attention.to_v": "attention.qkv",
    "attention.to_out.0": "attention.out",
    "feed_forward.w1": "feed_forward.w1",
    "feed_forward.w2": "feed_forward.w2",
    "feed_forward.w3": "feed_forward.w3",
    "adaLN_modulation.0": "adaLN_modulation.0",
}
_NORMS = {
    "attention.norm_q": "attention.q_norm",
    "attention.norm_k": "attention.k_norm",
    **{name: name for name in ("attention_norm1", "attention_norm2", "ffn_norm1", "ffn_norm2")},
}
_OUTER = {
    "all_x_embedder.2-1": "x_embedder",
    "all_final_layer.2-1.linear": "final_layer.linear",
    "all_final_layer.2-1.adaLN_modulation.1": "final_layer.adaLN_modulation.1",
    "cap_embedder.1": "cap_embedder.1",
    "t_embedder.mlp.0": "t_embedder.mlp.0",
    "t_embedder.mlp.2": "t_embedder.mlp.2",
}
_UNMODULATED = "context_refiner"
"""The blocks that read text alone know no time."""


def _in_blocks(names: Mapping[str, str]) -> dict[str, str]:
    """Names inside the blocks of every list, as whole paths."""
    return {
        f"{stack}.{{}}.{module}": f"{stack}.{{}}.{native}"
        for stack in STACKS
        for module, native in names.items()
        if not (stack == _UNMODULATED and module.startswith("adaLN"))
    }


_SPELLINGS = ("diffusion_model.{path}", "transformer.{path}", "lycoris_{flat}", "{path}")
"""How ComfyUI 0.33 spells a layer besides its native name, in its order (comfy/lora.py)."""

KEY_MAP = layer_names(
    {**_in_blocks(_BLOCK), **_OUTER},
    comfyui_spellings=_SPELLINGS,
    comfyui_names=(
        *(ComfyuiName(path, native) for path, native in _in_blocks(_NORMS).items()),
        ComfyuiName("cap_embedder.0", "cap_embedder.0"),
        # It has a name for these blocks' modulation too, which they lack.
        ComfyuiName(
            f"{_UNMODULATED}.{{}}.adaLN_modulation.0", f"{_UNMODULATED}.{{}}.adaLN_modulation.0"
        ),
    ),
)

_OWN = re.compile(
    rf"({'|'.join(STACKS)})\.\d+\.(attention\.(to_[qkv]|to_out\.0|out)\b|adaLN_modulation\.0\.)"
)
# Lumina 2 has blocks of the same names, whose modulation begins with an activation.
_OTHERS = re.compile(rf"({'|'.join(STACKS)})\.\d+\.(adaLN_modulation\.1|norm1\.linear)\.")
_TIME, _TIME_INNER = 256, 1024
"""Numbers that a time is spread to, and is embedded as at most; and those in between."""


def published_sizes(config: Mapping[str, Any]) -> PublishedSizes:
    """`LayerSpec.sizes`."""
    width, patch = config["dim"], 4 * config["in_channels"]
    inner, time = int(width / 3 * 8), min(width, _TIME)
    block = dict.fromkeys(_BLOCK, (width, width)) | {
        "feed_forward.w1": (inner, width),
        "feed_forward.w2": (width, inner),
        "feed_forward.w3": (inner, width),
        "adaLN_modulation.0": (4 * width, time),
    }
    outer = {
        "all_x_embedder.2-1": (width, patch),
        "all_final_layer.2-1.linear": (patch, width),
        "all_final_layer.2-1.adaLN_modulation.1": (width, time),
        "cap_embedder.1": (width, config["cap_feat_dim"]),
        "t_embedder.mlp.0": (_TIME_INNER, _TIME),
        "t_embedder.mlp.2": (time, _TIME_INNER),
    }
    paths = _in_blocks({name: name for name in _BLOCK})
    sizes = {path: block[path.split(".", 2)[2]] for path in paths}
    refiners = int(config["n_refiner_layers"])
    counts = dict.fromkeys(STACKS, refiners) | {"layers": int(config["n_layers"])}
    return PublishedSizes(sizes | outer, counts, width)


def detect(keys: Iterable[str]) -> bool:
    """`BaseFiles.detect`: a layer is there that Z-Image has, and none of Lumina 2's own."""
    names = list(keys)
    if any(_OTHERS.search(name) for name in names):
        return False
    return any(_OWN.search(name) for name in names)


_ORIGIN = origin_by_names(KEY_MAP)
_NATIVE_MARKS = ("x_embedder.", "final_layer.")
_FOREIGN = {
    "siglip_embedder.": "Z-Image Omni, which also sees images through SigLIP",
    "dec_net.": "a Z-Image that makes pixels without a VAE",
    "control_": "a ControlNet of Z-Image",
}


def settings(file: WeightFile) -> dict[str, Any]:
    """`FileSpec.settings`: base and Turbo have the same tensors."""
    for name in file.tensors:
        found = next((kind for start, kind in _FOREIGN.items() if name.startswith(start)), None)
        if found is not None:
            raise file.broken(
                f"it is {found} (it has {name})",
                "Z-Image base",
                "Name a file of Z-Image base as base.path: z_image_bf16.safetensors.",
            )
    at = names_in(file, _NATIVE_MARKS, _ORIGIN)
    width, channels = file.matrix(at("all_x_embedder.2-1.weight"))
    head = file.length(at("layers.0.attention.norm_q.weight"))
    heads = width // head if head else 0
    return {
        "in_channels": channels // 4,
        "dim": width,
        "n_layers": file.count("layers"),
        "n_refiner_layers": file.count("noise_refiner"),
        "n_heads": heads,
        "n_kv_heads": heads,
        "cap_feat_dim": file.matrix(at("cap_embedder.1.weight"))[1],
    }


def check(file: WeightFile, settings: Mapping[str, Any]) -> None:
    """`FileSpec.check`: the rotary positions fill every head."""
    heads, rotary = settings["n_heads"], sum(settings["axes_dims"])
    head = settings["dim"] // heads if heads else 0
    if head != rotary:
        raise file.broken(
            f"its attention heads have {head} values each",
            f"heads of {rotary}, which the rotary positions are for",
        )


def tidy(file: WeightFile) -> WeightFile:
    """`FileSpec.tidy`: Tongyi's own code has a norm in its files that nothing computes with."""
    tensors = {name: info for name, info in file.tensors.items() if name != "norm_final.weight"}
    return dataclasses.replace(file, tensors=tensors)


FILE = FileSpec(
    transformer="diffusers.ZImageTransformer2DModel",
    configs=Path(__file__).parent / "configs",
    native_marks=_NATIVE_MARKS,
    tidy=tidy,
    origin=_ORIGIN,
    settings=settings,
    # No published base edits, whatever a file is called.
    edits=lambda file: False,
    check=check,
)
