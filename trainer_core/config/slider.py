"""Settings of a concept slider: an adapter whose strength turns a concept up and down."""

from __future__ import annotations

from .section import Section, setting


class SliderSection(Section):
    """Prompts between which the base is moved; no images are needed."""

    positive: str = setting(
        "",
        "Set it to train a concept slider instead of images: what a strength above 0 should give "
        "more of, such as 'a very old person'.",
        advanced=True,
    )
    negative: str = setting(
        "",
        "The opposite, which a strength below 0 should give more of, such as 'a very young "
        "person'.",
        advanced=True,
    )
    neutral: list[str] = setting(
        [],
        "What the slider is used on, such as 'a person'; one or several prompts. Empty: the blank "
        "prompt.",
        advanced=True,
    )
    strength: float = setting(
        2.0,
        "Leave it; raise it when the slider does too little at strength 1. How far the base's "
        "prediction is moved along the difference between positive and negative.",
        advanced=True,
        gt=0.0,
        le=100.0,
    )
    images: int = setting(
        8,
        "Leave it. How many images of each neutral prompt the base makes, on whose way the slider "
        "is trained.",
        advanced=True,
        ge=1,
        le=1000,
    )
    steps: int = setting(
        12,
        "Leave it. Sampling steps of each of these images; each step is one sample.",
        advanced=True,
        ge=1,
        le=100,
    )
