"""Settings that contradict a concept slider, or would have no effect beside it.

As in `dataset_rules`: what was found, what was expected, what to do.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from .dialect import value_in_words
from .run import RunConfig
from .section import Section
from .slider import SliderSection

Contradiction = tuple[str, str, str]

_SHARED = frozenset({"slider", "resolution", "batch_size", "preservation"})
"""What of the dataset's section a slider has too."""
_REASONS = {
    "path": "a slider is trained without images",
    "folders": "a slider is trained without images",
    "regularization": "a slider is trained without images; dataset.preservation.prompts holds the "
    "base to other prompts",
    "validation": "nothing of a slider can be held out",
    "trigger_word": "a slider is called by its strength",
    "caption_dropout": "the neutral prompts are what a slider is trained on",
    "captions": "the prompts of a slider are taken as they are",
    "mask": "a slider is trained on whole images",
    "more_resolutions": "a slider is trained at one size",
    "more_shapes": "a slider is trained at one size",
    "num_repeats": "dataset.slider.images says how many images there are",
    "control_area": "a slider has no control images",
    "control_dropout": "a slider has no control images",
}
_ON = "dataset.slider.positive is set"
_NO_FOLDER = "it says how images of a folder are read, and a slider has none"


def slider_contradictions(config: RunConfig) -> Iterator[Contradiction]:
    """What contradicts itself in ``dataset.slider``, or beside it."""
    slider = config.dataset.slider
    if not slider.is_on:
        if slider != SliderSection():
            yield (
                "dataset.slider has settings and its positive prompt is empty, which is off",
                "negative, neutral, strength, images and steps only with a positive prompt",
                "Set dataset.slider.positive, or leave the section out.",
            )
        return
    yield from _directions(slider)
    yield from _of_images(config)
    kept = config.dataset.preservation
    if kept.asks_base:
        yield (
            f"dataset.preservation.kind is {kept.kind} and {_ON}",
            "kind trajectory or class: the others hold the base at images of a folder",
            "Set dataset.preservation.kind to trajectory, or dataset.preservation.share to 0.",
        )
    if config.adapter.init == "eva":
        yield (
            f"adapter.init is eva and {_ON}",
            "an initialization that does not come from images: a slider has none of its own",
            "Leave adapter.init out.",
        )
    if config.training.text_encoder.train:
        yield (
            f"training.text_encoder.train is true and {_ON}",
            "prompts that stay as they are: a slider is the difference between two of them",
            "Leave training.text_encoder out.",
        )
    if config.base.variant not in {"auto", "generate"}:
        yield (
            f"base.variant is {config.base.variant} and {_ON}",
            "a base that generates from a prompt alone",
            "Set base.variant to generate, or name another base.",
        )


def _directions(slider: SliderSection) -> Iterator[Contradiction]:
    for neutral, positive, negative in slider.triples():
        if positive == negative:
            yield (
                f"dataset.slider moves from {value_in_words(negative)} to "
                f"{value_in_words(positive)}"
                + (f", for the neutral prompt {value_in_words(neutral)}" if neutral else ""),
                "two different prompts, between which there is a direction",
                "Change dataset.slider.positive or dataset.slider.negative.",
            )
            return
    twice = sorted({each for each in slider.neutral if slider.neutral.count(each) > 1})
    if twice:
        yield (
            f"dataset.slider.neutral has {value_in_words(twice[0])} twice",
            "each neutral prompt once",
            "Remove it from dataset.slider.neutral; dataset.slider.images makes more images.",
        )


def _of_images(config: RunConfig) -> Iterator[Contradiction]:
    """Settings of a folder's images, which a slider has not."""
    dataset, usual = config.dataset, type(config.dataset)()
    for name in type(dataset).model_fields:
        if name in _SHARED:
            continue
        for path, said in _said(f"dataset.{name}", getattr(dataset, name), getattr(usual, name)):
            yield (
                f"{path} {said} and {_ON}",
                f"no {path}: {_REASONS.get(name, _NO_FOLDER)}",
                f"Leave {path} or dataset.slider out.",
            )


def _said(path: str, value: Any, usual: Any) -> Iterator[tuple[str, str]]:
    """Settings that are not as they usually are, and what they are, in words."""
    if value == usual:
        return
    if isinstance(value, Section):
        for name in type(value).model_fields:
            yield from _said(f"{path}.{name}", getattr(value, name), getattr(usual, name))
    elif isinstance(value, list) and value and isinstance(value[0], Section):
        yield path, f"names {len(value)} folder(s)"
    else:
        yield path, f"is {value_in_words(value)}"
