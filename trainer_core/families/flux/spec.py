"""The record of FLUX.1, and where its functions are."""

from __future__ import annotations

from ...weights.file_spec import FolderSpec
from ..diffusers_parts import takes_guidance
from ..family import Family
from ..family_specs import BaseFiles, HeaderNames, LatentSpec, LayerSpec, PredictionSpec, TextSpec
from ..flux_blocks import ATTENTION, MLP, REPEATED_BLOCKS, ROUTED, SHARED_INPUTS, UNEXPORTABLE
from ..flux_vae import load_vae
from ..trainable_text import CLIP_L
from .encode import control_size, load_encoders, load_token_counter
from .graph import GRAPH
from .keys import FILE, KEY_MAP, detect, published_sizes
from .predict import conditioning_shapes, predict
from .schnell import distilled, shift, trained_shift

_MODULATION = (
    r"transformer_blocks\.\d+\.(norm1|norm1_context)\.linear",
    r"single_transformer_blocks\.\d+\.norm\.linear",
)
_OUTER = (
    r"x_embedder|context_embedder|proj_out",
    r"time_text_embed\.(timestep|guidance|text)_embedder\.linear_[12]",
)

PRESETS = {
    "default": (*ATTENTION, *MLP),
    "attention": ATTENTION,
    "attention_mlp": (*ATTENTION, *MLP),
    "all_linear": (*ATTENTION, *MLP, *_MODULATION, *_OUTER),
    "musubi": (*ATTENTION, *MLP),
}

FAMILY = Family(
    name="flux",
    title="FLUX.1",
    models="dev, Kontext, Fill, schnell with a training adapter",
    variants=("generate", "edit", "fill"),
    text=TextSpec(
        # ComfyUI pads to 256, Diffusers to 512.
        length=256,
        load_token_counter=load_token_counter,
        conditioning_shapes=conditioning_shapes,
        trainable=CLIP_L,
    ),
    latents=LatentSpec(
        size_multiple=32,
        load_vae=load_vae,
        control_size=control_size,
        filled=frozenset({"fill"}),
    ),
    layers=LayerSpec(
        key_map=KEY_MAP,
        repeated_blocks=REPEATED_BLOCKS,
        routed=ROUTED,
        presets=PRESETS,
        shared_inputs=SHARED_INPUTS,
        unexportable=UNEXPORTABLE,
        sizes=published_sizes,
        published={
            "FLUX.1 as published": {},
            "FLUX.1 Fill": {"in_channels": 384, "out_channels": 64},
            "FLUX.1 Canny or Depth": {"in_channels": 128, "out_channels": 64},
        },
    ),
    files=BaseFiles(
        folder=FolderSpec(
            pipelines={
                "FluxPipeline": None,
                "FluxImg2ImgPipeline": None,
                "FluxInpaintPipeline": None,
                "FluxKontextPipeline": "edit",
                "FluxKontextInpaintPipeline": "edit",
                "FluxFillPipeline": "fill",
            },
            encoder_parts=("text_encoder", "text_encoder_2", "tokenizer", "tokenizer_2", "vae"),
        ),
        single_file=FILE,
        detect=detect,
        header_hint=r"flux(?!2|3)",
        # As sd-scripts (dev) and musubi-tuner (Kontext) write them; adapters fit both.
        header_names={
            "generate": HeaderNames("flux-1-dev", "flux1"),
            "edit": HeaderNames("flux-1-dev", "flux_kontext"),
            "fill": HeaderNames("flux-1-dev", "flux1"),
        },
    ),
    prediction=PredictionSpec(
        predict=predict,
        takes_guidance=takes_guidance,
        shift=shift,
        trained_shift=trained_shift,
    ),
    load_encoders=load_encoders,
    distilled=distilled,
    graph=GRAPH,
)
