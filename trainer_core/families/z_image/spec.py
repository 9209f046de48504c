"""The record of Z-Image, and where its functions are."""

from __future__ import annotations

from functools import partial

from ...diffusion.sigma import ShiftSettings
from ...weights.base_location import BaseLocation
from ...weights.file_spec import FolderSpec
from ..base_names import distilled_by_name, says_not_distilled
from ..diffusers_parts import text_shapes
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
from ..flux_vae import load_vae
from .encode import load_encoders, load_token_counter
from .graph import GRAPH
from .keys import FILE, KEY_MAP, STACKS, detect, published_sizes
from .predict import predict, prepare

_ATTENTION = r"layers\.\d+\.attention\.(to_[qkv]|to_out\.0)"
_MLP = r"layers\.\d+\.feed_forward\.w[123]"
_REFINERS = r"(noise|context)_refiner\.\d+\.(attention\.(to_[qkv]|to_out\.0)|feed_forward\.w[123])"
_MODULATION = r"(layers|noise_refiner)\.\d+\.adaLN_modulation\.0"
_OUTER = (
    r"all_x_embedder\.2-1|all_final_layer\.2-1\.(linear|adaLN_modulation\.1)|cap_embedder\.1"
    r"|t_embedder\.mlp\.[02]"
)

PRESETS = {
    "default": (_ATTENTION, _MLP),
    "attention": (_ATTENTION,),
    "attention_mlp": (_ATTENTION, _MLP),
    "all_linear": (_ATTENTION, _MLP, _REFINERS, _MODULATION, _OUTER),
    "musubi": (_ATTENTION, _MLP),
}

_ANY_BLOCK = rf"((?:{'|'.join(STACKS)})\.\d+)"
SHARED_INPUTS = (
    rf"{_ANY_BLOCK}\.attention\.to_[qkv]",
    rf"{_ANY_BLOCK}\.feed_forward\.w[13]",
)

_ADVICE = (
    "Train on Z-Image base (Tongyi-MAI/Z-Image, z_image_bf16.safetensors), whose adapters work on "
    "Z-Image-Turbo too, or on a De-Turbo model."
)


def distilled(location: BaseLocation) -> str:
    """`Family.distilled`: Turbo has the weights' names and sizes of base; its own name tells."""
    if says_not_distilled(location):
        return ""
    return _ADVICE if distilled_by_name(location) else ""


# As musubi-tuner writes them.
_HEADERS = HeaderNames("Z-Image", "z_image")

FAMILY = Family(
    name="z_image",
    title="Z-Image",
    models="base, Turbo with a training adapter",
    variants=("generate",),
    text=TextSpec(
        # What Diffusers' pipeline cuts at; ComfyUI cuts nothing.
        length=512,
        load_token_counter=load_token_counter,
        conditioning_shapes=partial(text_shapes, width="cap_feat_dim"),
    ),
    latents=LatentSpec(
        size_multiple=16,
        load_vae=load_vae,
    ),
    layers=LayerSpec(
        key_map=KEY_MAP,
        repeated_blocks=STACKS,
        routed=RoutedBlocks(
            ("layers",),
            axes={"attn_mask": (1,), "freqs_cis": (1,)},
            # The text comes behind the image.
            start=lambda length, target, references: 0,
        ),
        presets=PRESETS,
        shared_inputs=SHARED_INPUTS,
        sizes=published_sizes,
        prepare=prepare,
    ),
    files=BaseFiles(
        folder=FolderSpec(
            pipelines={
                "ZImagePipeline": None,
                "ZImageImg2ImgPipeline": None,
                "ZImageInpaintPipeline": None,
            },
        ),
        single_file=FILE,
        detect=detect,
        header_hint=r"zimage",
        header_names={"generate": _HEADERS},
    ),
    prediction=PredictionSpec(
        predict=predict,
        # Folders say 6 or 3, for generating. Source: musubi-tuner 30c658c, docs/zimage.md.
        trained_shift=lambda location: ShiftSettings(shift=2.0),
    ),
    load_encoders=load_encoders,
    distilled=distilled,
    graph=GRAPH,
)
