"""Settings of the noise levels that are trained."""

from __future__ import annotations

from typing import Literal

from .section import Section, setting


class SigmaSection(Section):
    """Which noise levels are trained; 1 is pure noise."""

    density: Literal[
        "logit_normal",
        "uniform",
        "shifted",
        "mode",
        "content",
        "style",
        "beta",
        "cosmap",
        "auto",
    ] = setting(
        "logit_normal",
        "Take 'style' for a look, 'content' for composition, else leave it. Which noise is trained "
        "most. 'logit_normal', 'cosmap': the middle. 'uniform': all. 'shifted': moved to noise by "
        "'shift'. 'mode': by 'mode_scale'. 'content': strong. 'style': weak. 'beta': by alpha and "
        "beta. 'auto': the family's.",
        advanced=True,
    )
    mean: float = setting(
        0.0,
        "Leave it unless a recipe names another value; higher trains strong noise more. Only "
        "logit_normal and shifted: mean of the logit.",
        advanced=True,
        ge=-5,
        le=5,
    )
    std: float = setting(
        1.0,
        "Leave it unless a recipe names another value; higher trains weak and strong noise more. "
        "Only for logit_normal and shifted: standard deviation of the logit.",
        advanced=True,
        gt=0,
        le=5,
    )
    shift: float | None = setting(
        None,
        "Leave it unset unless a recipe names one; above 1 trains strong noise more. "
        "sigma' = shift * sigma / (1 + (shift - 1) * sigma). Unset: for shifted what the base's "
        "family is trained with at the image's size, else none.",
        advanced=True,
        gt=0.0,
        le=100.0,
    )
    mode_scale: float = setting(
        1.29,
        "Leave it unless a recipe names another value. Only for mode: above 0 more middle noise, "
        "below 0 more of both ends.",
        advanced=True,
        ge=-1.0,
        le=1.75,
    )
    alpha: float = setting(
        1.0,
        "Leave it unless a recipe names another value; higher trains strong noise more. Only "
        "for the density beta, its first number.",
        advanced=True,
        ge=0.1,
        le=100.0,
    )
    beta: float = setting(
        1.0,
        "Leave it unless a recipe names another value; higher trains weak noise more. Only "
        "for the density beta, its second number.",
        advanced=True,
        ge=0.1,
        le=100.0,
    )
    stratified: bool = setting(
        False,
        "Leave it off; switch it on for steadier steps of several samples. Spreads the noise "
        "levels of a step evenly over the density instead of drawing each for itself.",
        advanced=True,
    )
    min: float = setting(
        0.0,
        "Leave it at 0; raise it to leave out weak noise, and with it the finest detail. Smallest "
        "sigma that is trained.",
        advanced=True,
        ge=0.0,
        lt=1.0,
    )
    max: float = setting(
        1.0,
        "Leave it at 1; lower it to leave out strong noise, and with it the composition. Largest "
        "sigma that is trained.",
        advanced=True,
        gt=0.0,
        le=1.0,
    )
