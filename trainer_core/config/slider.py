"""Settings of a concept slider: an adapter whose strength turns a concept up and down."""

from __future__ import annotations

from collections.abc import Iterator

from .section import Other, Problem, Section, setting
from .yaml_dialect import value_in_words

PLACE = "{}"
"""Stands in ``positive`` and ``negative`` for the neutral prompt."""

_ON = Other("positive", such_as="a very old person")


class SliderSection(Section):
    """Prompts between which the base is moved; no images are needed."""

    positive: str = setting(
        "",
        "Set it to train a slider without images: the prompt that strengths above 0 move to, such "
        "as 'a very old person'. {} in it stands for the neutral prompt: 'a very old {}', or "
        "'{}, very old'.",
        advanced=True,
    )
    negative: str = setting(
        "",
        "Set it to the opposite, which strengths below 0 move to, such as 'a very young person'. "
        "{} stands for the neutral prompt. Empty: the neutral prompt itself.",
        advanced=True,
        only_with=_ON,
    )
    neutral: list[str] = setting(
        [],
        "Set it to what the slider is used on, such as 'a person'; several prompts teach it to "
        "work on all of them and to leave alone what they differ in. Empty: the blank prompt.",
        advanced=True,
        only_with=_ON,
    )
    strength: float = setting(
        1.0,
        "Leave it; raise it, up to 4, when the slider does too little at strength 1; lower it "
        "when it spoils the image. How far the base's prediction is moved, as a multiple of the "
        "difference between positive and negative.",
        advanced=True,
        gt=0.0,
        le=100.0,
        only_with=_ON,
    )
    images: int = setting(
        16,
        "Leave it; raise it when the slider works on few images alone. How many images of each "
        "neutral prompt the base makes before the first step, for the slider to be trained on.",
        advanced=True,
        ge=1,
        le=1000,
        only_with=_ON,
    )
    steps: int = setting(
        12,
        "Leave it; lower it to wait less before the first step. Sampling steps of each image that "
        "the base makes to train the slider on.",
        advanced=True,
        ge=1,
        le=100,
        only_with=_ON,
    )

    @property
    def is_on(self) -> bool:
        """Whether a slider is trained, and no images of a folder."""
        return bool(self.positive.strip())

    @property
    def has_negative(self) -> bool:
        """Whether there is an opposite beside the neutral prompt."""
        return bool(self.negative.strip())

    def triples(self) -> tuple[tuple[str, str, str], ...]:
        """Neutral, positive and negative prompt, for each neutral prompt."""
        neutral = tuple(self.neutral) or ("",)
        negative = self.negative if self.has_negative else PLACE
        return tuple(
            (each, self.positive.replace(PLACE, each), negative.replace(PLACE, each))
            for each in neutral
        )

    def problems(self) -> Iterator[Problem]:
        """What contradicts itself, besides the conditions of the fields."""
        if not self.is_on:
            return
        for neutral, positive, negative in self.triples():
            if positive == negative:
                yield Problem(
                    f"dataset.slider moves from {value_in_words(negative)} to "
                    f"{value_in_words(positive)}"
                    + (f", for the neutral prompt {value_in_words(neutral)}" if neutral else ""),
                    "two different prompts, between which there is a direction",
                    "Change dataset.slider.positive or dataset.slider.negative.",
                )
                return
        twice = sorted({each for each in self.neutral if self.neutral.count(each) > 1})
        if twice:
            yield Problem(
                f"dataset.slider.neutral has {value_in_words(twice[0])} twice",
                "each neutral prompt once",
                "Remove it from dataset.slider.neutral; dataset.slider.images makes more images.",
            )
