"""Settings of what is minimized: which noise levels are trained, and how an error counts."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal

from .section import Other, Problem, Section, setting

_NORMAL = Other("density", "logit_normal", "shifted")
_BETA = Other("density", "beta")
_HUBER = Other("kind", "huber")


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
        only_with=_NORMAL,
    )
    std: float = setting(
        1.0,
        "Leave it unless a recipe names another value; higher trains weak and strong noise more. "
        "Only for logit_normal and shifted: standard deviation of the logit.",
        advanced=True,
        gt=0,
        le=5,
        only_with=_NORMAL,
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
        only_with=Other("density", "mode"),
    )
    alpha: float = setting(
        1.0,
        "Leave it unless a recipe names another value; higher trains strong noise more. Only "
        "for the density beta, its first number.",
        advanced=True,
        ge=0.1,
        le=100.0,
        only_with=_BETA,
    )
    beta: float = setting(
        1.0,
        "Leave it unless a recipe names another value; higher trains weak noise more. Only "
        "for the density beta, its second number.",
        advanced=True,
        ge=0.1,
        le=100.0,
        only_with=_BETA,
    )
    stratified: bool = setting(
        True,
        "Leave it on; off, more of each step is chance. An image meets each noise level twice, "
        "the second time with the opposite noise, and its levels follow each other evenly over "
        "the density. Off: each is drawn for itself.",
        advanced=True,
        resumed="course",
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

    def problems(self) -> Iterator[Problem]:
        """What contradicts itself, besides the conditions of the fields."""
        if self.min >= self.max:
            yield Problem(
                f"training.sigma.min is {self.min} and training.sigma.max is {self.max}",
                "training.sigma.min below training.sigma.max",
                "Lower training.sigma.min, or raise training.sigma.max.",
            )


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
        only_with=_HUBER,
    )
    huber_schedule: Literal["constant", "sigma"] = setting(
        "constant",
        "Leave it on constant. Only for huber. 'constant': huber_delta at every noise level. "
        "'sigma': at pure noise huber_delta, and exponentially more towards the image, where it "
        "is 1.",
        advanced=True,
        only_with=_HUBER,
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
        only_with=Other(
            "kind", "mse", of=("learned",), because="the learned weights even out squared errors"
        ),
    )
    snr_gamma: float = setting(
        5.0,
        "Leave it unless a recipe names another value. Only for weighting min_snr: signal-to-noise "
        "ratio from which on weaker noise counts less.",
        advanced=True,
        gt=0.0,
        le=1000.0,
        only_with=Other("weighting", "min_snr"),
    )
    differential_guidance: float = setting(
        1.0,
        "Leave it at 1. ai-toolkit's experiment: the target is moved away from the prediction, to "
        "this multiple of their distance. With mse it only multiplies the gradient, which AdamW "
        "undoes; with huber it lowers huber_delta as well.",
        advanced=True,
        ge=1.0,
        le=20.0,
        not_with=Other(
            "kind",
            "mae",
            such_as="mse",
            because="its gradient does not depend on how large an error is",
        ),
    )
    noise_offset: float = setting(
        0.0,
        "Leave it at 0; try 0.05 when images should become much darker or brighter than the base "
        "makes them. Share of noise that is added, the same over a whole channel of an image.",
        advanced=True,
        ge=0.0,
        le=1.0,
    )
    sound: float = setting(
        1.0,
        "Leave it at 1; raise it when voices are learned later than the image. Factor on the loss "
        "of clips' sound beside that of their frames; 0: sound is heard and not trained. Only "
        "where sound is trained.",
        advanced=True,
        ge=0.0,
        le=100.0,
    )

    def problems(self) -> Iterator[Problem]:
        """What contradicts itself, besides the conditions of the fields."""
        by_sigma = self.kind == "huber" and self.huber_schedule == "sigma"
        if by_sigma and self.huber_delta >= 1.0:
            yield Problem(
                "training.loss.huber_schedule is sigma and training.loss.huber_delta is "
                f"{self.huber_delta}",
                "huber_delta below 1: the schedule falls from 1 at the image to it at pure noise",
                "Lower training.loss.huber_delta, or set training.loss.huber_schedule to constant.",
            )
