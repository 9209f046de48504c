"""The record of Qwen-Image 2.1, and where its functions are."""

from __future__ import annotations

import dataclasses
from functools import partial

from ...diffusion.sigma import ShiftSettings
from ...weights.base_location import BaseLocation
from ...weights.diffusers_folder import read_json
from ...weights.file_spec import FolderSpec
from ..base_names import distilled_by_name
from ..diffusers_parts import read_shift, text_shapes
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
from ..qwen_vae import latents
from .encode import load_encoders, load_token_counter, load_vae
from .keys import FILE, KEY_MAP, detect, published_sizes
from .predict import predict, prepare

_ATTENTION = r"transformer_blocks\.\d+\.attn\.(to_[qkv]|to_out\.0)"
_MLP = r"transformer_blocks\.\d+\.img_mlp\.(gate_layer|proj|out)"
_OUTER = (
    r"img_in|txt_in\.(in|out)_layer|modulation\.1|norm_out\.linear|proj_out"
    r"|time_text_embed\.timestep_embedder\.linear_[12]"
)

PRESETS = {
    # No other trainer has this model, so this choice is ours: the blocks, whose modulation is one
    # layer that all of them share.
    "default": (_ATTENTION, _MLP),
    "attention": (_ATTENTION,),
    "attention_mlp": (_ATTENTION, _MLP),
    "all_linear": (_ATTENTION, _MLP, _OUTER),
}

SHARED_INPUTS = (
    r"(transformer_blocks\.\d+)\.attn\.to_[qkv]",
    r"(transformer_blocks\.\d+)\.img_mlp\.(?:gate_layer|proj)",
)


def shift(location: BaseLocation, steps: int) -> ShiftSettings:
    """`PredictionSpec.shift`: of a single file by the scheduler beside its encoders."""
    del steps
    if location.file is not None and (location.encoders / "scheduler").is_dir():
        location = dataclasses.replace(location, folder=location.encoders)
    return read_shift(location)


def distilled(location: BaseLocation) -> str:
    """`Family.distilled`: the noise levels of Turbo stand in its folder; a file has its name."""
    levels = read_json(location.folder / "model_index.json").get("sample_sigmas")
    if not levels:
        return distilled_by_name(location)
    return (
        f"It is Qwen-Image 2.1 Turbo, made for {len(levels)} steps: train on Qwen-Image 2.1, "
        "which has the same layers, and try the adapter on Turbo."
    )


_HEADERS = HeaderNames("Qwen-Image-2.1", "qwen_image_21")

FAMILY = Family(
    name="qwen_image_21",
    title="Qwen-Image 2.1",
    models="text-to-image, edit with references; command line only",
    variants=("generate", "edit_plus"),
    headless="ComfyUI 0.33 has no QwenImage 2.1",
    text=TextSpec(
        length=1024,
        load_token_counter=load_token_counter,
        conditioning_shapes=partial(text_shapes, width="context_in_dim"),
        shown=frozenset({"edit_plus"}),
    ),
    latents=LatentSpec(
        # An image token of the text encoder is 2 x 2 latents of 16 pixels.
        size_multiple=32,
        load_vae=load_vae,
        of_config=latents,
        decoder_numbers=3220,
        patch=1,
        channels=4,
    ),
    layers=LayerSpec(
        key_map=KEY_MAP,
        repeated_blocks=("transformer_blocks",),
        routed=RoutedBlocks(
            ("transformer_blocks",),
            axes={"rotary_emb": (0,), "target_token_mask": (0,)},
            # References come before the target.
            start=lambda length, target, references: length - target,
        ),
        presets=PRESETS,
        shared_inputs=SHARED_INPUTS,
        sizes=published_sizes,
        prepare=prepare,
    ),
    files=BaseFiles(
        folder=FolderSpec(
            # One pipeline for both tasks.
            pipelines={"QwenImage21Pipeline": None},
            encoder_parts=("text_encoder", "processor", "vae"),
            edit_parts=("processor",),
        ),
        single_file=FILE,
        detect=detect,
        header_hint=r"qwenimage21",
        header_names={"generate": _HEADERS, "edit_plus": _HEADERS},
    ),
    prediction=PredictionSpec(
        predict=predict,
        shift=shift,
        # The line of its own scheduler; no other trainer knows this base.
        trained_shift=lambda location: ShiftSettings(dynamic=True),
    ),
    load_encoders=load_encoders,
    distilled=distilled,
)
