"""The record of Chroma, and where its functions are."""

from __future__ import annotations

import re

from ...diffusion.sigma import ShiftSettings
from ...weights.base_location import BaseLocation
from ...weights.file_spec import FolderSpec
from ..base_names import base_name, distilled_by_name
from ..diffusers_parts import read_shift
from ..family import Family
from ..family_specs import BaseFiles, HeaderNames, LatentSpec, LayerSpec, PredictionSpec, TextSpec
from ..flux_blocks import ATTENTION, MLP, REPEATED_BLOCKS, ROUTED, SHARED_INPUTS
from ..flux_vae import load_vae
from .attention import keep_texts_apart
from .encode import load_encoders, load_token_counter
from .graph import GRAPH
from .keys import FILE, KEY_MAP, detect, published_sizes
from .predict import predict

_OUTER = (
    r"x_embedder|context_embedder|proj_out",
    # It makes the modulation of every block, and is left as it is by all other presets.
    r"distilled_guidance_layer\.(in_proj|out_proj|layers\.\d+\.linear_[12])",
)

PRESETS = {
    "default": (*ATTENTION, *MLP),
    "attention": ATTENTION,
    "attention_mlp": (*ATTENTION, *MLP),
    "all_linear": (*ATTENTION, *MLP, *_OUTER),
}


def distilled(location: BaseLocation) -> str:
    """`Family.distilled`: Flash has the guidance of a few steps in its weights."""
    if re.search(r"(?<![a-z])flash(?![a-z])", base_name(location)):
        return (
            "It is Chroma1-Flash by its name, with guidance and few steps in its weights: train on "
            "Chroma1-HD or Chroma1-Base, whose adapters work on Flash too."
        )
    return distilled_by_name(location)


def shift(location: BaseLocation, steps: int) -> ShiftSettings:
    """`PredictionSpec.shift`: sigmas along a beta distribution, which folders ask for, are none."""
    return read_shift(location, passed_over=("use_beta_sigmas",))


FAMILY = Family(
    name="chroma",
    title="Chroma1",
    models="HD, Base",
    variants=("generate",),
    text=TextSpec(
        # ComfyUI cuts nothing; Diffusers pads to 512.
        length=512,
        load_token_counter=load_token_counter,
    ),
    latents=LatentSpec(
        size_multiple=32,
        load_vae=load_vae,
    ),
    layers=LayerSpec(
        key_map=KEY_MAP,
        repeated_blocks=REPEATED_BLOCKS,
        routed=ROUTED,
        presets=PRESETS,
        shared_inputs=SHARED_INPUTS,
        sizes=published_sizes,
        prepare=keep_texts_apart,
    ),
    files=BaseFiles(
        folder=FolderSpec(
            pipelines={
                "ChromaPipeline": None,
                "ChromaImg2ImgPipeline": None,
                "ChromaInpaintPipeline": None,
            },
        ),
        single_file=FILE,
        detect=detect,
        header_hint=r"chroma(?!1?radiance)",
        # As ai-toolkit writes them.
        header_names={"generate": HeaderNames("chroma", "chroma")},
        twin="flux",
    ),
    prediction=PredictionSpec(
        predict=predict,
        shift=shift,
        # Without a shift: as sd-scripts 48d368fa and ai-toolkit 27a03a91 train it (sigmoid).
        trained_shift=lambda location: ShiftSettings(),
    ),
    load_encoders=load_encoders,
    distilled=distilled,
    graph=GRAPH,
)
