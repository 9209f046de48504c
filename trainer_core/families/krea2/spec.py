"""The record of Krea 2, and where its functions are."""

from __future__ import annotations

from ...diffusion.sigma import ShiftSettings
from ...weights.file_spec import FolderSpec
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
from .encode import load_encoders, load_token_counter
from .graph import GRAPH
from .keys import FILE, KEY_MAP, detect, published_sizes
from .predict import conditioning_shapes, distilled, predict, prepare, shift

_BLOCKS = r"transformer_blocks\.\d+"
_FUSION = r"text_fusion\.(layerwise|refiner)_blocks\.\d+"
_ATTENTION = r"attn\.(to_[qkv]|to_gate|to_out\.0)"
_MLP = r"ff\.(gate|up|down)"
_OUTER = r"img_in|time_mod_proj|final_layer\.linear|(time_embed|txt_in)\.linear_[12]"
# text_fusion.projector has one output, so that rank 1 is all that it can take. It is left to those
# who name it; musubi-tuner and the authors train it too, at a rank that adds nothing.
_ALL = (rf"({_BLOCKS}|{_FUSION})\.({_ATTENTION}|{_MLP})", _OUTER)

PRESETS = {
    "default": (rf"{_BLOCKS}\.({_ATTENTION}|{_MLP})",),
    # What the authors advise for long trainings.
    "attention": (rf"{_BLOCKS}\.{_ATTENTION}",),
    "attention_mlp": (rf"{_BLOCKS}\.({_ATTENTION}|{_MLP})",),
    "all_linear": _ALL,
    "musubi": _ALL,
}

SHARED_INPUTS = (
    rf"({_BLOCKS}|{_FUSION})\.attn\.to_(?:[qkv]|gate)",
    rf"({_BLOCKS}|{_FUSION})\.ff\.(?:gate|up)",
)


FAMILY = Family(
    name="krea2",
    title="Krea 2",
    models="raw; its adapters work on turbo",
    variants=("generate",),
    text=TextSpec(
        length=512,
        load_token_counter=load_token_counter,
        conditioning_shapes=conditioning_shapes,
    ),
    latents=LatentSpec(
        size_multiple=16,
        load_vae=load_vae,
        of_config=latents,
    ),
    layers=LayerSpec(
        key_map=KEY_MAP,
        repeated_blocks=("transformer_blocks",),
        routed=RoutedBlocks(
            ("transformer_blocks",),
            axes={"image_rotary_emb": (0, 0), "attention_mask": (3,)},
        ),
        presets=PRESETS,
        shared_inputs=SHARED_INPUTS,
        sizes=published_sizes,
        prepare=prepare,
    ),
    files=BaseFiles(
        folder=FolderSpec(
            pipelines={"Krea2Pipeline": None},
        ),
        single_file=FILE,
        detect=detect,
        header_hint="krea2",
        # As musubi-tuner writes them.
        header_names={"generate": HeaderNames("Krea-2", "krea2")},
    ),
    prediction=PredictionSpec(
        predict=predict,
        shift=shift,
        # As musubi-tuner 30c658c trains it (krea2_shift).
        trained_shift=lambda location: ShiftSettings(dynamic=True, max_tokens=6400),
    ),
    load_encoders=load_encoders,
    distilled=distilled,
    graph=GRAPH,
)
