"""The record of FLUX.2, and where its functions are."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any

from ...diffusion.sigma import ShiftSettings
from ...weights.base_location import BaseLocation
from ...weights.diffusers_folder import read_json
from ...weights.file_spec import FolderSpec
from ..base_names import base_name, distilled_by_name, says_not_distilled
from ..diffusers_parts import read_shift, takes_guidance
from ..family import Family
from ..family_specs import BaseFiles, HeaderNames, LatentSpec, LayerSpec, PredictionSpec, TextSpec
from ..flux_blocks import ATTENTION, REPEATED_BLOCKS, ROUTED, SHARED_INPUTS, UNEXPORTABLE
from .encode import control_size, latents, load_encoders, load_token_counter, load_vae
from .graph import GRAPH
from .keys import FILE, KEY_MAP, detect, published_sizes
from .predict import predict

# Attention and MLP of a single block are one layer at its beginning and one at its end.
_SINGLE = r"single_transformer_blocks\.\d+\.attn\.(to_qkv_mlp_proj|to_out)"
_ATTENTION = (ATTENTION[0], _SINGLE)
_MLP = r"transformer_blocks\.\d+\.(ff|ff_context)\.linear_(in|out)"
_MODULATION = r"(double_stream_modulation_(img|txt)|single_stream_modulation)\.linear"
_OUTER = (
    r"x_embedder|context_embedder|proj_out",
    r"time_guidance_embed\.(timestep|guidance)_embedder\.linear_[12]",
)

PRESETS = {
    "default": (*_ATTENTION, _MLP),
    "attention": _ATTENTION,
    "attention_mlp": (*_ATTENTION, _MLP),
    "all_linear": (*_ATTENTION, _MLP, _MODULATION, *_OUTER),
    "musubi": (*_ATTENTION, _MLP),
}
_HEADER = HeaderNames("Flux.2", "flux_2")


def _klein(double: int, single: int, heads: int, text: int) -> dict[str, Any]:
    return {
        "num_layers": double,
        "num_single_layers": single,
        "num_attention_heads": heads,
        "joint_attention_dim": text,
        "guidance_embeds": False,
    }


_TRAINED_SHIFT = ShiftSettings(dynamic=True)
"""FLUX.1's line. Source: OneTrainer, pull request 1516: its authors say that FLUX.2 was trained
with it, and that `mu` is for generating; musubi-tuner 30c658c, ``flux2_shift``."""
_MANY_TOKENS = 4300
_AT_10, _AT_200 = (8.73809524e-05, 1.89833333), (0.00016927, 0.45666666)
"""Slope and start of the line of mu over the tokens, for so many steps."""

_ADVICE = (
    "FLUX.2 klein is distilled to four steps: train on the klein base of the same size "
    "(FLUX.2-klein-base-4B or -9B), whose adapters work on klein too. If the name is wrong, "
    "rename it."
)


def _mu(tokens: int, steps: int) -> float:
    """`ShiftSettings.mu`: between a line for 10 steps and one for 200; one line for large images.

    Source: Diffusers 0.42, ``compute_empirical_mu`` of ``Flux2Pipeline``.
    """
    few, many = (slope * tokens + start for slope, start in (_AT_10, _AT_200))
    if tokens > _MANY_TOKENS:
        return many
    slope = (many - few) / 190
    return slope * steps + many - 200 * slope


def _distilled(location: BaseLocation) -> str:
    """`Family.distilled`: dev is distilled in its guidance alone, which training leaves alone."""
    if says_not_distilled(location):
        return ""
    if location.file is None:
        is_distilled = read_json(location.folder / "model_index.json").get("is_distilled")
        if is_distilled is not None:
            return _ADVICE if is_distilled else ""
    name = base_name(location)
    return _ADVICE if "klein" in name and "base" not in name else distilled_by_name(location)


FAMILY = Family(
    name="flux2",
    title="FLUX.2",
    models="dev, klein base 4B and 9B",
    variants=("generate", "edit"),
    text=TextSpec(
        length=512,
        load_token_counter=load_token_counter,
    ),
    latents=LatentSpec(
        size_multiple=16,
        load_vae=load_vae,
        of_config=latents,
        patch=1,
        control_size=control_size,
    ),
    layers=LayerSpec(
        key_map=KEY_MAP,
        repeated_blocks=REPEATED_BLOCKS,
        routed=ROUTED,
        presets=PRESETS,
        # The first layer of a single block, of all that reads its input, is one.
        shared_inputs=SHARED_INPUTS[:2],
        unexportable=UNEXPORTABLE,
        sizes=published_sizes,
        published={
            "FLUX.2 dev": {},
            "FLUX.2 klein 4B": _klein(5, 20, 24, 7680),
            "FLUX.2 klein 9B": _klein(8, 24, 32, 12288),
        },
    ),
    files=BaseFiles(
        folder=FolderSpec(
            pipelines={
                "Flux2Pipeline": "edit",
                "Flux2KleinPipeline": "edit",
                "Flux2KleinInpaintPipeline": "edit",
            },
            does_both=True,
        ),
        single_file=FILE,
        detect=detect,
        header_hint=r"flux2|klein",
        header_names={"generate": _HEADER, "edit": _HEADER},
        # Attention alone of klein 4B has the names and sizes of FLUX.1's.
        twin="flux",
    ),
    prediction=PredictionSpec(
        predict=predict,
        takes_guidance=takes_guidance,
        shift=lambda location, steps: replace(read_shift(location), mu=partial(_mu, steps=steps)),
        trained_shift=lambda location: _TRAINED_SHIFT,
    ),
    load_encoders=load_encoders,
    distilled=_distilled,
    graph=GRAPH,
)
