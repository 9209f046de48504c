"""Settings of the learning-rate schedule."""

from __future__ import annotations

from typing import Literal

from .section import Section, setting


class ScheduleSection(Section):
    """How the learning rate changes over the run."""

    name: Literal[
        "constant",
        "linear",
        "cosine",
        "cosine_restarts",
        "polynomial",
        "warmup_stable_decay",
        "rex",
        "one_cycle",
    ] = setting(
        "constant",
        "Leave it on constant while you do not know how long to train; take cosine to let a run "
        "of known length end gently. All but constant end at min_ratio: straight, in a curve, in "
        "several curves, by 'power', or only in the last part of the run.",
    )
    warmup_steps: int = setting(
        0,
        "Raise it when the first steps do harm, such as at a high learning rate; leave it at 0 "
        "otherwise. Steps of linear rise of the learning rate from 0 at the start.",
        ge=0,
    )
    warmup_share: float = setting(
        0.0,
        "Leave it at 0, or set it instead of warmup_steps. Share of the run in which the learning "
        "rate rises.",
        advanced=True,
        ge=0.0,
        le=0.9,
    )
    min_ratio: float = setting(
        0.0,
        "Leave it at 0; raise it to let the end of a run still learn. Last learning rate over the "
        "highest; means nothing with constant.",
        advanced=True,
        ge=0.0,
        le=1.0,
    )
    cycles: int = setting(
        3,
        "Leave it unless a recipe names another value. Only for cosine_restarts: how often the "
        "learning rate falls from its highest.",
        advanced=True,
        ge=1,
        le=1000,
    )
    power: float = setting(
        2.0,
        "Leave it unless a recipe names another value. Only for polynomial: 1 is linear, more "
        "falls faster at first.",
        advanced=True,
        gt=0.0,
        le=10.0,
    )
    decay_share: float = setting(
        0.2,
        "Leave it unless a recipe names another value. Only for warmup_stable_decay: share of the "
        "run, at its end, in which the learning rate falls.",
        advanced=True,
        gt=0.0,
        le=1.0,
    )
