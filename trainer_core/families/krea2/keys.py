"""Names of Krea 2's layers, Diffusers' and ComfyUI's both ways, and its single files.

Nothing is fused in either, so every layer has one name. The tables that move and scale a block's
values lie flat in a single file.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from ...adapter_files.names.key_map import ComfyuiName
from ...weights.file_spec import FileSpec, Origin
from ...weights.header import WeightFile
from ..diffusers_parts import check_heads, layer_names, names_in
from ..published_sizes import PublishedSizes

_IN_BLOCKS = {
    "attn.to_q": "attn.wq",
    "attn.to_k": "attn.wk",
    "attn.to_v": "attn.wv",
    "attn.to_gate": "attn.gate",
    "attn.to_out.0": "attn.wo",
    "ff.gate": "mlp.gate",
    "ff.up": "mlp.up",
    "ff.down": "mlp.down",
}
_BLOCKS = {
    "transformer_blocks": "blocks",
    "text_fusion.layerwise_blocks": "txtfusion.layerwise_blocks",
    "text_fusion.refiner_blocks": "txtfusion.refiner_blocks",
}
_OUTER = {
    "img_in": "first",
    "time_embed.linear_1": "tmlp.0",
    "time_embed.linear_2": "tmlp.2",
    "time_mod_proj": "tproj.1",
    "txt_in.linear_1": "txtmlp.1",
    "txt_in.linear_2": "txtmlp.3",
    "text_fusion.projector": "txtfusion.projector",
    "final_layer.linear": "last.linear",
}


def _in_blocks(layers: Mapping[str, str]) -> dict[str, str]:
    """Names inside the blocks, as whole paths."""
    return {
        f"{own}.{{}}.{module}": f"{theirs}.{{}}.{native}"
        for own, theirs in _BLOCKS.items()
        for module, native in layers.items()
    }


_SHORT_OUT = _in_blocks({"attn.to_out": "attn.wo"})
"""Some trainers leave out the number of the layer that ends an attention; ComfyUI reads that."""

KEY_MAP = layer_names(
    {**_in_blocks(_IN_BLOCKS), **_OUTER},
    # Heads of queries to those of keys and values, where another program fuses the three.
    {"transformer_blocks.{}.attn.to_q": 4},
    comfyui_spellings=(
        "diffusion_model.{path}",
        "transformer.{path}",
        "lycoris_{flat}",
        "{path}",
    ),
    comfyui_names=tuple(ComfyuiName(own, native) for own, native in _SHORT_OUT.items()),
    aliases=_SHORT_OUT,
)
"""ComfyUI's names.

Source: ComfyUI 0.33, ``comfy/lora.py`` (`model_lora_keys_unet`) and ``comfy/utils.py``
(`krea2_to_diffusers`).
"""

_TABLE = ".mod.lin"
_OTHER_ENDINGS = {
    ".norm1.weight": ".prenorm.scale",
    ".norm2.weight": ".postnorm.scale",
    ".attn.norm_q.weight": ".attn.qknorm.qnorm.scale",
    ".attn.norm_k.weight": ".attn.qknorm.knorm.scale",
    ".scale_shift_table": _TABLE,
}
_OTHER_TENSORS = {
    "txt_in.norm.weight": "txtmlp.0.scale",
    "final_layer.norm.weight": "last.norm.scale",
    "final_layer.scale_shift_table": "last.modulation.lin",
}
_OTHER_BLOCKS = {"transformer_blocks.": "blocks.", "text_fusion.": "txtfusion."}


def origin(name: str, native: bool) -> Origin | None:
    """`FileSpec.origin`: layers by `KEY_MAP`; norms and tables, which are called otherwise."""
    if not native:
        return Origin(name)
    path, _, kind = name.rpartition(".")
    key = KEY_MAP.to_native(path)
    if key is not None:
        return Origin(f"{key.name}.{kind}")
    if name in _OTHER_TENSORS:
        return Origin(_OTHER_TENSORS[name])
    for own, theirs in _OTHER_BLOCKS.items():
        for ending, native_ending in _OTHER_ENDINGS.items():
            if name.startswith(own) and name.endswith(ending):
                inside = theirs + name[len(own) : -len(ending)]
                return Origin(inside + native_ending, flat=native_ending == _TABLE)
    return None


_OWN = re.compile(
    r"txtfusion\.|text_fusion\.|(^|\.)blocks\.\d+\.(attn\.(w[qkvo]|gate|qknorm)|mlp\.(gate|up|down))\b"
    r"|transformer_blocks\.\d+\.(attn\.to_gate|ff\.(gate|up|down))\."
)


def detect(keys: Iterable[str]) -> bool:
    """`BaseFiles.detect`: an attention with a gate, or what makes one text of several states."""
    return any(_OWN.search(name) for name in keys)


_SHARES = 6
"""Vectors that move, scale and gate both halves of a block."""


_MARKS = ("blocks.", "txtfusion.")


def settings(file: WeightFile) -> dict[str, Any]:
    """`FileSpec.settings`: raw and turbo have the same tensors."""
    at = names_in(file, _MARKS, origin)

    def attention(block: str) -> tuple[int, int, int]:
        """Values of a head, heads, and heads of keys and values."""
        head = file.length(at(f"{block}.attn.norm_q.weight"))
        sides = (file.matrix(at(f"{block}.attn.to_{each}.weight"))[0] for each in "qk")
        heads, shared = (rows // head if head else 0 for rows in sides)
        return head, heads, shared

    text = "text_fusion.layerwise_blocks.0"
    head, heads, shared = attention("transformer_blocks.0")
    _, text_heads, text_shared = attention(text)
    return {
        "in_channels": file.matrix(at("img_in.weight"))[1],
        "num_layers": file.count(at("transformer_blocks.0.attn.to_q.weight").partition(".")[0]),
        "attention_head_dim": head,
        "num_attention_heads": heads,
        "num_key_value_heads": shared,
        "intermediate_size": file.matrix(at("transformer_blocks.0.ff.gate.weight"))[0],
        "timestep_embed_dim": file.matrix(at("time_embed.linear_1.weight"))[1],
        "text_hidden_dim": file.length(at(f"{text}.norm1.weight")),
        "num_text_layers": file.matrix(at("text_fusion.projector.weight"))[1],
        "text_num_attention_heads": text_heads,
        "text_num_key_value_heads": text_shared,
        "text_intermediate_size": file.matrix(at(f"{text}.ff.gate.weight"))[0],
    }


def check(file: WeightFile, settings: Mapping[str, Any]) -> None:
    """`FileSpec.check`: sizes with which Diffusers' class cannot be built.

    Raises:
        BaseModelError: When heads do not fit the rotary positions, or each other.
    """
    check_heads(file, settings)
    for stream, width in (("", None), ("text_", settings["text_hidden_dim"])):
        heads = settings[f"{stream}num_attention_heads"]
        shared = settings[f"{stream}num_key_value_heads"]
        if shared < 1 or heads < 1 or heads % shared or (width or heads) % heads:
            raise file.broken(
                f"its attention has {heads} heads and {shared} of keys and values",
                "heads that are a multiple of those of keys and values, and divide the width",
            )


def published_sizes(config: Mapping[str, Any]) -> PublishedSizes:
    """`LayerSpec.sizes`."""
    width = config["num_attention_heads"] * config["attention_head_dim"]
    text = config["text_hidden_dim"]

    def block(width: int, stream: str) -> dict[str, tuple[int, int]]:
        feed = config["text_intermediate_size" if stream else "intermediate_size"]
        heads = config[f"{stream}num_attention_heads"]
        narrow = width // heads * config[f"{stream}num_key_value_heads"]
        square = (width, width)
        return {
            **dict.fromkeys(_IN_BLOCKS, square),
            **dict.fromkeys(("attn.to_k", "attn.to_v"), (narrow, width)),
            **dict.fromkeys(("ff.gate", "ff.up"), (feed, width)),
            "ff.down": (width, feed),
        }

    sizes = {
        f"{path}.{{}}.{name}": size
        for path in _BLOCKS
        for name, size in (
            block(text, "text_") if path.startswith("text") else block(width, "")
        ).items()
    }
    sizes |= {
        "img_in": (width, config["in_channels"]),
        "time_embed.linear_1": (width, config["timestep_embed_dim"]),
        "time_embed.linear_2": (width, width),
        "time_mod_proj": (_SHARES * width, width),
        "txt_in.linear_1": (width, text),
        "txt_in.linear_2": (width, width),
        "text_fusion.projector": (1, config["num_text_layers"]),
        "final_layer.linear": (config["in_channels"], width),
    }
    counts = (f"num_{each}" for each in ("layers", "layerwise_text_blocks", "refiner_text_blocks"))
    blocks = {
        name: config[count]
        for names, count in zip(_BLOCKS.items(), counts, strict=True)
        for name in names
    }
    return PublishedSizes(sizes, blocks, width)


FILE = FileSpec(
    transformer="diffusers.Krea2Transformer2DModel",
    configs=Path(__file__).parent / "configs",
    native_marks=_MARKS,
    origin=origin,
    settings=settings,
    edits=lambda file: False,
    check=check,
)
