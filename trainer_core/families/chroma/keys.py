"""Names of Chroma's layers, Diffusers' and ComfyUI's both ways, and its single files."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from torch import nn

from ...adapter_files.names.key_map import ComfyuiName
from ...weights.file_spec import FileSpec
from ...weights.header import WeightFile
from ..diffusers_parts import check_heads, layer_names, names_in, origin_by_names
from ..flux_blocks import (
    DOUBLE,
    DOUBLE_MODULATION,
    NATIVE_MARKS,
    OTHER_NAMES,
    OUTER,
    SHARES,
    SINGLE,
    SINGLE_MODULATION,
    SPELLINGS,
    TIME,
    block_counts,
    block_sizes,
    file_sizes,
    in_blocks,
    tidy,
)
from ..published_sizes import PublishedSizes

_MODULATION = "distilled_guidance_layer"
"""What computes the modulation of every block, out of the noise level and the block's number."""

_DEPTH = 5
"""Layers of it. ComfyUI loads no other number."""

_APPROXIMATOR = {
    f"{_MODULATION}.in_proj": f"{_MODULATION}.in_proj",
    f"{_MODULATION}.out_proj": f"{_MODULATION}.out_proj",
    f"{_MODULATION}.layers.{{}}.linear_1": f"{_MODULATION}.layers.{{}}.in_layer",
    f"{_MODULATION}.layers.{{}}.linear_2": f"{_MODULATION}.layers.{{}}.out_layer",
}

# ComfyUI takes names of layers that FLUX.1 has and this model lacks.
_ABSENT = {**in_blocks(DOUBLE_MODULATION, SINGLE_MODULATION), **TIME}
_NORMS = tuple(f"{_MODULATION}.norms.{at}" for at in range(_DEPTH))

KEY_MAP = layer_names(
    {**in_blocks(DOUBLE, SINGLE), **OUTER, **_APPROXIMATOR},
    SHARES,
    SPELLINGS,
    (
        *OTHER_NAMES,
        *(ComfyuiName(path, native) for path, native in _ABSENT.items()),
        *(ComfyuiName(path, path, spellings=("diffusion_model.{path}",)) for path in _NORMS),
    ),
    native_only=frozenset(_APPROXIMATOR),
)


def published_sizes(config: Mapping[str, Any]) -> PublishedSizes:
    """`LayerSpec.sizes`."""
    width = config["num_attention_heads"] * config["attention_head_dim"]
    hidden, channels = config["approximator_hidden_dim"], config["in_channels"]
    sizes = {
        **block_sizes(width),
        **dict.fromkeys(_APPROXIMATOR, (hidden, hidden)),
        f"{_MODULATION}.in_proj": (hidden, config["approximator_num_channels"]),
        f"{_MODULATION}.out_proj": (width, hidden),
        "x_embedder": (width, channels),
        "context_embedder": (width, config["joint_attention_dim"]),
        "proj_out": (config.get("out_channels") or channels, width),
    }
    blocks = {**block_counts(config), f"{_MODULATION}.layers": config["approximator_layers"]}
    return PublishedSizes(sizes, blocks, width)


def detect(keys: Iterable[str]) -> bool:
    """`BaseFiles.detect`: it computes its modulation by one network.

    An adapter without that, which nearly all are, could be FLUX.1's too (`BaseFiles.twin`).
    """
    return any(_MODULATION in name for name in keys)


_ORIGIN = origin_by_names(KEY_MAP)


def settings(file: WeightFile) -> dict[str, Any]:
    """`FileSpec.settings`."""
    if any(name.startswith("nerf_") for name in file.tensors):
        raise file.broken(
            "it is Chroma1-Radiance, which predicts pixels and has no VAE",
            "Chroma1-HD or Chroma1-Base",
            "Name a file of one of these as base.path.",
        )
    at = names_in(file, NATIVE_MARKS, _ORIGIN)
    hidden, channels = file.matrix(at(f"{_MODULATION}.in_proj.weight"))
    return {
        **file_sizes(file, at),
        "approximator_num_channels": channels,
        "approximator_hidden_dim": hidden,
        "approximator_layers": file.count(f"{_MODULATION}.layers"),
    }


def restore(transformer: nn.Module) -> None:
    """`FileSpec.restore`: the blocks' numbers, spread, which are a buffer in no file."""
    empty: Any = transformer.time_text_embed
    transformer.time_text_embed = type(empty)(
        num_channels=empty.time_proj.num_channels, out_dim=empty.mod_proj.shape[0]
    )


FILE = FileSpec(
    transformer="diffusers.ChromaTransformer2DModel",
    configs=Path(__file__).parent / "configs",
    native_marks=NATIVE_MARKS,
    tidy=tidy,
    origin=_ORIGIN,
    settings=settings,
    restore=restore,
    check=check_heads,
)
