"""Noise levels of FLUX.2, and which of its bases are distilled."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

from ...diffusion.sigma import ShiftSettings
from ...weights.base_location import BaseLocation
from ...weights.diffusers_folder import read_json
from ..diffusers_parts import read_shift
from ..distilled import base_name, distilled_by_name, says_not_distilled

TRAINED_SHIFT = ShiftSettings(dynamic=True)
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


def mu(tokens: int, steps: int) -> float:
    """`ShiftSettings.mu`: between a line for 10 steps and one for 200; one line for large images.

    Source: Diffusers 0.42, ``compute_empirical_mu`` of ``Flux2Pipeline``.
    """
    few, many = (slope * tokens + start for slope, start in (_AT_10, _AT_200))
    if tokens > _MANY_TOKENS:
        return many
    slope = (many - few) / 190
    return slope * steps + many - 200 * slope


def shift(location: BaseLocation, steps: int) -> ShiftSettings:
    """`PredictionSpec.shift`."""
    return replace(read_shift(location), mu=partial(mu, steps=steps))


def distilled(location: BaseLocation) -> str:
    """`Family.distilled`: dev is distilled in its guidance alone, which training leaves alone."""
    if says_not_distilled(location):
        return ""
    if location.file is None:
        told = read_json(location.folder / "model_index.json").get("is_distilled")
        if told is not None:
            return _ADVICE if told else ""
    name = base_name(location)
    return _ADVICE if "klein" in name and "base" not in name else distilled_by_name(location)
