"""The record of FLUX.1, and where its functions are."""

from __future__ import annotations

from functools import partial

from torch import nn

from ...adapter_files.names.key_map import KeyMap
from ...weights.file_spec import FolderSpec
from ..diffusers_parts import scheduled_shift, scheduled_sigmas
from ..family import Family, HeaderNames, enable_checkpointing
from .encode import control_size, latent_shape, load_decoder, load_encoders, load_token_counter
from .graph import GRAPH
from .keys import (
    ALIASES,
    COMFYUI_NAMES,
    COMFYUI_SPELLINGS,
    FILE,
    LAYERS,
    UNEXPORTABLE,
    detect,
    fused_parts,
    module_path,
    native_key,
    published_sizes,
)
from .predict import guide, load_transformer, predict, takes_guidance

_ATTENTION = (
    r"transformer_blocks\.\d+\.attn\.(to_[qkv]|to_out\.0|add_[qkv]_proj|to_add_out)",
    r"single_transformer_blocks\.\d+\.attn\.to_[qkv]",
)
_MLP = (
    r"transformer_blocks\.\d+\.(ff|ff_context)\.net\.(0\.proj|2)",
    # The output of a single block joins attention and MLP in one layer.
    r"single_transformer_blocks\.\d+\.(proj_mlp|proj_out)",
)
_MODULATION = (
    r"transformer_blocks\.\d+\.(norm1|norm1_context)\.linear",
    r"single_transformer_blocks\.\d+\.norm\.linear",
)
_OUTER = (
    r"x_embedder|context_embedder|proj_out",
    r"time_text_embed\.(timestep|guidance|text)_embedder\.linear_[12]",
)

PRESETS = {
    "default": (*_ATTENTION, *_MLP),
    "attention": _ATTENTION,
    "attention_mlp": (*_ATTENTION, *_MLP),
    "all_linear": (*_ATTENTION, *_MLP, *_MODULATION, *_OUTER),
    "musubi": (*_ATTENTION, *_MLP),
}

SHARED_INPUTS = (
    r"(transformer_blocks\.\d+)\.attn\.to_[qkv]",
    r"(transformer_blocks\.\d+)\.attn\.add_[qkv]_proj",
    r"(single_transformer_blocks\.\d+)\.(?:proj_mlp|attn\.to_[qkv])",
)


def unused_layers(transformer: nn.Module) -> tuple[str, ...]:
    """None: the last blocks compute text and image with the same layers."""
    del transformer
    return ()


FAMILY = Family(
    name="flux",
    title="FLUX.1",
    models="dev, Kontext",
    variants=("generate", "edit"),
    # ComfyUI pads to 256, Diffusers to 512.
    text_length=256,
    size_multiple=32,
    folder=FolderSpec(
        transformer="FluxTransformer2DModel",
        pipelines={
            "FluxPipeline": None,
            "FluxImg2ImgPipeline": None,
            "FluxInpaintPipeline": None,
            "FluxKontextPipeline": "edit",
            "FluxKontextInpaintPipeline": "edit",
        },
        encoder_parts=("text_encoder", "text_encoder_2", "tokenizer", "tokenizer_2", "vae"),
    ),
    file=FILE,
    repeated_blocks=("transformer_blocks", "single_transformer_blocks"),
    presets=PRESETS,
    unexportable=UNEXPORTABLE,
    unused_layers=unused_layers,
    shared_inputs=SHARED_INPUTS,
    enable_checkpointing=enable_checkpointing,
    takes_guidance=takes_guidance,
    detect=detect,
    load_transformer=load_transformer,
    load_encoders=load_encoders,
    load_decoder=load_decoder,
    load_token_counter=load_token_counter,
    predict=predict,
    guide=guide,
    sampling_sigmas=partial(scheduled_sigmas, latent_shape),
    training_shift=partial(scheduled_shift, latent_shape),
    control_size=control_size,
    latent_shape=latent_shape,
    key_map=KeyMap(
        native_key,
        module_path,
        parts=fused_parts,
        layers=LAYERS,
        comfyui_spellings=COMFYUI_SPELLINGS,
        comfyui_names=COMFYUI_NAMES,
        aliases=ALIASES,
    ),
    sizes=published_sizes,
    graph=GRAPH,
    header_hint=r"flux(?!2|3)",
    # As sd-scripts (dev) and musubi-tuner (Kontext) write them; one class of adapters fits both.
    header_names={
        "generate": HeaderNames("flux-1-dev", "flux1"),
        "edit": HeaderNames("flux-1-dev", "flux_kontext"),
    },
)
