"""Names of Wan's layers, Diffusers' and ComfyUI's both ways, and its single files.

Nothing is fused in either, and ComfyUI knows the layers by its own names alone. Of a block's norms
the second and the third have exchanged numbers.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from torch import nn

from ...adapter_files.names.key_map import ComfyuiName
from ...adapter_files.names.video_model_names import VIDEO_MODELS
from ...weights.file_spec import FileSpec, Origin
from ...weights.header import WeightFile
from ..diffusers_parts import layer_names, names_in, origin_by_names
from ..published_sizes import PublishedSizes

_OF_OTHERS = re.compile("vace|patch_embedding")
_LAYERS = {
    path: native
    for native, path in VIDEO_MODELS["wan"].layers.items()
    if not _OF_OTHERS.search(native)
}
"""Without those that only models have which are given control clips, and without the convolution,
which no preset adapts."""

_OF_VISION = re.compile(r"add_[kv]_proj|image_embedder")
_IMAGE = "condition_embedder.image_embedder"
"""What Wan 2.1 has for a start frame as a vision model sees it."""

_TABLE = "scale_shift_table"
_BESIDE = {
    "blocks.{}.attn1.norm_q": "blocks.{}.self_attn.norm_q",
    "blocks.{}.attn1.norm_k": "blocks.{}.self_attn.norm_k",
    "blocks.{}.attn2.norm_q": "blocks.{}.cross_attn.norm_q",
    "blocks.{}.attn2.norm_k": "blocks.{}.cross_attn.norm_k",
    "blocks.{}.attn2.norm_added_k": "blocks.{}.cross_attn.norm_k_img",
    f"{_IMAGE}.norm1": "img_emb.proj.0",
    f"{_IMAGE}.norm2": "img_emb.proj.4",
    "blocks.{}.norm2": "blocks.{}.norm3",
    "patch_embedding": "patch_embedding",
    f"blocks.{{}}.{_TABLE}": "blocks.{}.modulation",
    _TABLE: "head.modulation",
}

KEY_MAP = layer_names(
    _LAYERS,
    comfyui_names=tuple(ComfyuiName(path, native) for path, native in _BESIDE.items()),
    native_only=frozenset(_LAYERS),
)

_BY_NAMES = origin_by_names(KEY_MAP)


def origin(name: str, native: bool) -> Origin | None:
    """`FileSpec.origin`: also of tables that move and scale, which are parameters of blocks."""
    path, _, last = name.rpartition(".")
    if native and last == _TABLE:
        return Origin(f"{path or 'head'}.modulation")
    return _BY_NAMES(name, native)


_OWN = re.compile(
    r"(?<![a-z_])blocks\.\d+\.((self|cross)_attn\.([qkvo]|norm_[qk])\.|attn[12]\.(to_[qkv]|to_out)\b)"
)


def detect(keys: Iterable[str]) -> bool:
    """`BaseFiles.detect`: attention to itself and to the text, in blocks of one list."""
    return any(_OWN.search(name) for name in keys)


HEAD = 128
"""Values of a head of attention, which no shape tells."""

_MARKS = ("head.", "time_embedding.", "text_embedding.")
OF_5B = 48
"""Channels of the latents of Wan 2.2 TI2V-5B, which has a VAE of its own."""

_MERGED = 4
"""Latents of a frame that become one token."""

_GIVEN_MORE = re.compile(
    "vace|emb_pos|pos_embed|control_adapter|audio|face_|motion_encoder|ref_conv|patch_embedding_"
)


def start_channels(channels: int) -> int:
    """Channels that a base for start frames reads behind the noise: four of a mask, and latents."""
    return 4 + channels


def channels_of(file: WeightFile) -> int:
    """Channels that a file's denoiser reads; 0 where it has no such layer."""
    patch = file.tensors.get("patch_embedding.weight")
    return patch.shape[1] if patch is not None and len(patch.shape) > 1 else 0


def settings(file: WeightFile) -> dict[str, Any]:
    """`FileSpec.settings`.

    Raises:
        BaseModelError: When the model is given more than a text: an image, a clip, a sound; or its
            heads are not those of the published models.
    """
    at = names_in(file, _MARKS, origin)
    width, text = file.matrix(at("condition_embedder.text_embedder.linear_1.weight"))
    channels = file.matrix(at("proj_out.weight"))[0] // _MERGED
    read = channels_of(file)
    more = next((name for name in file.tensors if _GIVEN_MORE.search(name)), None)
    if more is not None or read not in (channels, channels + start_channels(channels)):
        why = f"it has {more}" if more else f"it reads {read} channels and makes {channels}"
        raise file.broken(
            f"it is a Wan model that is given more than a text and a start frame ({why})",
            "a text-to-video model of Wan, or an image-to-video one",
            "Train it in ComfyUI, through Base From Model, or name another file as base.path.",
        )
    if width % HEAD:
        raise file.broken(f"it is {width} wide", f"a multiple of {HEAD}, the width of its heads")
    views = at(f"{_IMAGE}.ff.net.0.proj.weight")
    vision = file.matrix(views)[0] if views in file.tensors else None
    return {
        "image_dim": vision,
        "added_kv_proj_dim": vision and width,
        "in_channels": read,
        "out_channels": channels,
        "num_layers": file.count("blocks"),
        "attention_head_dim": HEAD,
        "num_attention_heads": width // HEAD,
        "ffn_dim": file.matrix(at("blocks.0.ffn.net.0.proj.weight"))[0],
        "freq_dim": file.matrix(at("condition_embedder.time_embedder.linear_1.weight"))[1],
        "text_dim": text,
    }


def published_sizes(config: Mapping[str, Any]) -> PublishedSizes:
    """`LayerSpec.sizes`."""
    width = config["num_attention_heads"] * config["attention_head_dim"]
    vision = config.get("image_dim")
    layers = [each for each in _LAYERS if vision or not _OF_VISION.search(each)]
    of_vision = {
        f"{_IMAGE}.ff.net.0.proj": (vision, vision),
        f"{_IMAGE}.ff.net.2": (width, vision),
    }
    sizes = (
        dict.fromkeys(layers, (width, width))
        | (of_vision if vision else {})
        | {
            "blocks.{}.ffn.net.0.proj": (config["ffn_dim"], width),
            "blocks.{}.ffn.net.2": (width, config["ffn_dim"]),
            "condition_embedder.text_embedder.linear_1": (width, config["text_dim"]),
            "condition_embedder.time_embedder.linear_1": (width, config["freq_dim"]),
            "condition_embedder.time_proj": (6 * width, width),
            "proj_out": (_MERGED * config["out_channels"], width),
        }
    )
    return PublishedSizes(sizes, {"blocks": config["num_layers"]}, width)


def restore(transformer: nn.Module) -> None:
    """`FileSpec.restore`: tables of rotary positions, which no file holds."""
    rope: Any = transformer.get_submodule("rope")
    transformer.rope = type(rope)(rope.attention_head_dim, rope.patch_size, rope.max_seq_len)


FILE = FileSpec(
    transformer="diffusers.WanTransformer3DModel",
    configs=Path(__file__).parent / "configs",
    native_marks=_MARKS,
    origin=origin,
    settings=settings,
    config_of=lambda file, variant: "ti2v_5b" if channels_of(file) == OF_5B else variant,
    edits=lambda file: False,
    restore=restore,
)
