"""Settings of the loss: how an error is measured, and how much each noise level counts."""

from __future__ import annotations

from typing import Literal

from .section import Section, setting


class LossSection(Section):
    """How far a prediction is off, and how much that counts."""

    kind: Literal["mse", "huber", "mae"] = setting(
        "mse",
        "Leave it on mse; take huber when a few odd images spoil the rest. 'mse': squared errors. "
        "'mae': their size. 'huber': as mse far below huber_delta, by their size far above it.",
    )
    huber_delta: float = setting(
        0.1,
        "Leave it unless huber changes too much or too little. Only for huber: the size of error "
        "from which on errors count by their size instead of its square.",
        advanced=True,
        gt=0.0,
        le=100.0,
    )
    huber_schedule: Literal["constant", "sigma"] = setting(
        "constant",
        "Leave it on constant. Only for huber. 'constant': huber_delta at every noise level. "
        "'sigma': at pure noise huber_delta, and exponentially more towards the image, where it "
        "is 1.",
        advanced=True,
    )
    weighting: Literal[
        "none", "sigma_sqrt", "cosmap", "min_snr", "logit_normal", "learned", "debiased"
    ] = setting(
        "none",
        "Leave it on none. How much a noise level counts. 'sigma_sqrt': 1/sigma^2, weak noise. "
        "'cosmap': more in the middle. 'min_snr': less at both ends, by snr_gamma. "
        "'logit_normal': the middle; take density uniform with it. 'learned': sigma bands add "
        "alike. 'debiased': strong noise, for eps and v.",
        advanced=True,
    )
    snr_gamma: float = setting(
        5.0,
        "Leave it unless a recipe names another value. Only for weighting min_snr: signal-to-noise "
        "ratio from which on weaker noise counts less.",
        advanced=True,
        gt=0.0,
        le=1000.0,
    )
    differential_guidance: float = setting(
        1.0,
        "Leave it at 1. ai-toolkit's experiment: the target is moved away from the prediction, to "
        "this multiple of their distance. With mse it only multiplies the gradient, which AdamW "
        "undoes; with huber it lowers huber_delta as well.",
        advanced=True,
        ge=1.0,
        le=20.0,
    )
    noise_offset: float = setting(
        0.0,
        "Leave it at 0; try 0.05 when images should become much darker or brighter than the base "
        "makes them. Share of noise that is added, the same over a whole channel of an image.",
        advanced=True,
        ge=0.0,
        le=1.0,
    )
