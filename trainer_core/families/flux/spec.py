"""The record of FLUX.1, and where its functions are."""

from __future__ import annotations

from ...weights.file_spec import FolderSpec
from ..family import Family, HeaderNames
from .encode import control_size, load_encoders, load_token_counter, load_vae
from .graph import GRAPH
from .keys import FILE, KEY_MAP, UNEXPORTABLE, detect, published_sizes
from .predict import conditioning_shapes, predict, takes_guidance
from .schnell import distilled, shift

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


FAMILY = Family(
    name="flux",
    title="FLUX.1",
    models="dev, Kontext, schnell with a training adapter",
    variants=("generate", "edit"),
    # ComfyUI pads to 256, Diffusers to 512.
    text_length=256,
    size_multiple=32,
    folder=FolderSpec(
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
    shared_inputs=SHARED_INPUTS,
    takes_guidance=takes_guidance,
    detect=detect,
    load_encoders=load_encoders,
    load_vae=load_vae,
    load_token_counter=load_token_counter,
    predict=predict,
    shift=shift,
    distilled=distilled,
    conditioning_shapes=conditioning_shapes,
    control_size=control_size,
    key_map=KEY_MAP,
    sizes=published_sizes,
    graph=GRAPH,
    header_hint=r"flux(?!2|3)",
    # As sd-scripts (dev) and musubi-tuner (Kontext) write them; one class of adapters fits both.
    header_names={
        "generate": HeaderNames("flux-1-dev", "flux1"),
        "edit": HeaderNames("flux-1-dev", "flux_kontext"),
    },
)
