"""The record of Qwen-Image, and where its functions are."""

from __future__ import annotations

import dataclasses
from pathlib import Path

from torch import nn

from ...diffusion.sigma import ShiftSettings
from ...weights.base_location import BaseLocation
from ...weights.file_spec import FolderSpec
from ..diffusers_parts import inner_module, read_shift
from ..family import Family
from ..family_specs import (
    BaseFiles,
    HeaderNames,
    LatentSpec,
    LayerSpec,
    PredictionSpec,
    RoutedBlocks,
    TextSpec,
)
from ..qwen_vae import latents, load_vae
from .encode import SHOWS_IMAGES, load_encoders, load_token_counter
from .graph import GRAPH
from .keys import FILE, KEY_MAP, detect, published_sizes
from .predict import guide, predict, prepare

_ATTENTION = r"transformer_blocks\.\d+\.attn\.(to_[qkv]|to_out\.0|add_[qkv]_proj|to_add_out)"
_MLP = r"transformer_blocks\.\d+\.(img|txt)_mlp\.net\.(0\.proj|2)"
_MODULATION = r"transformer_blocks\.\d+\.(img|txt)_mod\.1"
_OUTER = r"img_in|txt_in|time_text_embed\.timestep_embedder\.linear_[12]|norm_out\.linear|proj_out"

PRESETS = {
    "default": (_ATTENTION, _MLP),
    "attention": (_ATTENTION,),
    "attention_mlp": (_ATTENTION, _MLP),
    "all_linear": (_ATTENTION, _MLP, _MODULATION, _OUTER),
    # musubi means to leave out the modulation, but its pattern "_mod_" matches no layer.
    "musubi": (_ATTENTION, _MLP, _MODULATION),
}

SHARED_INPUTS = (
    r"(transformer_blocks\.\d+)\.attn\.to_[qkv]",
    r"(transformer_blocks\.\d+)\.attn\.add_[qkv]_proj",
)


def shift(location: BaseLocation, steps: int) -> ShiftSettings:
    """`PredictionSpec.shift`: with layers, mu is the side of the image over 256 pixels.

    Source: Diffusers, ``QwenImageLayeredPipeline``.
    """
    found = read_shift(location)
    if location.variant != "layered":
        return found
    return dataclasses.replace(found, mu=lambda tokens: (tokens / found.base_tokens) ** 0.5)


def unused_layers(transformer: nn.Module) -> tuple[str, ...]:
    """`LayerSpec.unused`: the last block's text branch, only whose keys and values are read."""
    last = len(inner_module(transformer).transformer_blocks) - 1
    return (
        rf"transformer_blocks\.{last}\.attn\.(to_add_out|add_q_proj)",
        rf"transformer_blocks\.{last}\.txt_mlp\.net\.(0\.proj|2)",
    )


FAMILY = Family(
    name="qwen_image",
    title="Qwen-Image",
    models="text-to-image and 2512, Edit, Edit-Plus 2509/2511, Layered",
    variants=("generate", "edit", "edit_plus", "layered"),
    embedded=Path(__file__).parents[2] / "assets" / "tiny-qwen-image",
    text=TextSpec(
        length=1024,
        load_token_counter=load_token_counter,
        shown=SHOWS_IMAGES,
    ),
    latents=LatentSpec(
        # Two patches of 2x2 latents of 8 pixels: with an odd number of patches per side ComfyUI
        # centres the rotary positions differently than Diffusers.
        size_multiple=32,
        load_vae=load_vae,
        of_config=latents,
        layered=("layered",),
    ),
    layers=LayerSpec(
        key_map=KEY_MAP,
        repeated_blocks=("transformer_blocks",),
        routed=RoutedBlocks(
            ("transformer_blocks",),
            # Positions of the image, and of the text by themselves.
            axes={"image_rotary_emb": (0, None), "modulate_index": (1,)},
        ),
        presets=PRESETS,
        shared_inputs=SHARED_INPUTS,
        unused=unused_layers,
        sizes=published_sizes,
        prepare=prepare,
    ),
    files=BaseFiles(
        folder=FolderSpec(
            pipelines={
                "QwenImagePipeline": None,
                "QwenImageImg2ImgPipeline": None,
                "QwenImageInpaintPipeline": None,
                "QwenImageEditPipeline": "edit",
                "QwenImageEditInpaintPipeline": "edit",
                "QwenImageEditPlusPipeline": "edit_plus",
                "QwenImageLayeredPipeline": "layered",
            },
            edit_parts=("processor",),
        ),
        single_file=FILE,
        detect=detect,
        header_hint=r"qwenimage(?!21)",
        # As musubi-tuner writes them.
        header_names={
            "generate": HeaderNames("Qwen-Image", "qwen_image"),
            "edit": HeaderNames("Qwen-Image-Edit", "qwen_image_edit"),
            "edit_plus": HeaderNames("Qwen-Image-Edit", "qwen_image_edit"),
            "layered": HeaderNames("Qwen-Image-Layered", "qwen_image_layered"),
        },
    ),
    prediction=PredictionSpec(
        predict=predict,
        guide=guide,
        shift=shift,
        # 1.8 at 768 pixels, 2.0 at 1024. Source: musubi-tuner 30c658c, qwen_shift, of all variants.
        trained_shift=lambda location: ShiftSettings(dynamic=True, max_shift=0.9, max_tokens=8192),
    ),
    load_encoders=load_encoders,
    graph=GRAPH,
)
