"""FLUX.1 schnell: distilled to few steps, without guidance, and with noise levels of its own."""

from __future__ import annotations

import math

from ...diffusion.sigma import ShiftSettings
from ...weights.base_location import BaseLocation
from ...weights.diffusers_folder import read_json
from ...weights.header import open_weights
from ..base_names import distilled_by_name, says_not_distilled
from ..diffusers_parts import read_shift
from .keys import FILE

_ADVICE = (
    "FLUX.1 schnell has no layer for guidance: train on FLUX.1 dev, whose adapters mostly work on "
    "schnell too, or on a model whose name says that it is de-distilled."
)


def distilled(location: BaseLocation) -> str:
    """`Family.distilled`."""
    if says_not_distilled(location):
        return ""
    return _ADVICE if _is_schnell(location) else distilled_by_name(location)


def trained_shift(location: BaseLocation) -> ShiftSettings:
    """`PredictionSpec.trained_shift`: dev's line, of which schnell has none.

    Source: sd-scripts 48d368fa, ``flux_shift``, as the published inference code has it.
    """
    schnell = not says_not_distilled(location) and _is_schnell(location)
    return ShiftSettings(dynamic=not schnell)


def shift(location: BaseLocation, steps: int) -> ShiftSettings:
    """`PredictionSpec.shift`: schnell's noise levels are not moved."""
    del steps
    if location.file is not None and not says_not_distilled(location) and _is_schnell(location):
        return ShiftSettings()
    return read_shift(location)


def sampled_shift(location: BaseLocation) -> float:
    """`GraphSpec.shift`: KSampler takes every model without guidance for schnell.

    Source: ComfyUI 0.33, ``comfy/supported_models.py`` (`Flux`, `FluxSchnell`).
    """
    return math.exp(1.15) if _is_guided(location) else 1.0


def _is_schnell(location: BaseLocation) -> bool:
    if location.file is not None:
        return not _is_guided(location)
    # A model without guidance that was not distilled has the noise levels of dev.
    return not _is_guided(location) and not read_shift(location).dynamic


def _is_guided(location: BaseLocation) -> bool:
    if location.file is not None:
        return bool(FILE.settings(FILE.tidy(open_weights(location.file)))["guidance_embeds"])
    settings = read_json(location.folder / "transformer" / "config.json")
    return bool(settings.get("guidance_embeds"))
