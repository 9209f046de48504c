"""What a run takes where its run file says nothing: its length, and prompts for preservation."""

from __future__ import annotations

import math

from .run import RunConfig

_SAMPLES_SEEN, _MOST_SAMPLES = 450, 6000
_OF_SLIDER = 800
_ROUNDED_TO = 10
_WARMUP_SHARE = 10


def resolved_length(config: RunConfig, images: int) -> RunConfig:
    """Fill in ``training.steps`` from the number of training images, where it is unset.

    A run sees ``450 sqrt(images)`` samples of its own images: 12 images 130 times each, 100 images
    45 times each; from 178 images on it is 6000. Samples that preserve the base, regularization
    images and repeats are not counted, and every step is taken to be full, which the last one of an
    epoch may not be. A slider sees 800 samples, each of them with both signs of its strength.
    """
    training = config.training
    if training.steps is not None:
        return config
    together = config.dataset.batch_size or training.batch_size
    samples = together * training.gradient_accumulation_steps
    own = samples * (1 - config.dataset.preservation.share)
    # What a slider learns is one direction, however many images it is seen on.
    trained = min(_SAMPLES_SEEN * math.sqrt(images), _MOST_SAMPLES)
    trained = _OF_SLIDER if config.dataset.slider.is_on else trained
    steps = math.ceil(trained / own / _ROUNDED_TO) * _ROUNDED_TO
    return with_length(config, max(steps, training.schedule.warmup_steps))


def with_length(config: RunConfig, steps: int) -> RunConfig:
    """The same run file with a number of steps."""
    training = config.training.model_copy(update={"steps": steps})
    return config.model_copy(update={"training": training})


def fitted_warmup(config: RunConfig) -> tuple[RunConfig, str]:
    """Shorten a warm-up that is longer than the run's steps to a tenth of it, and say so in a note.

    A run that is made short, for a try, is not to fail or to end before it has begun to learn.
    """
    steps, schedule = run_length(config), config.training.schedule
    if schedule.warmup_steps <= steps:
        return config, ""
    fitted = steps // _WARMUP_SHARE
    changed = schedule.model_copy(update={"warmup_steps": fitted})
    training = config.training.model_copy(update={"schedule": changed})
    note = (
        f"The warm-up (training.schedule.warmup_steps) is shortened from {schedule.warmup_steps} "
        f"steps to {fitted}, because the run has {steps}."
    )
    return config.model_copy(update={"training": training}), note


def run_length(config: RunConfig) -> int:
    """Number of steps of a run file whose length is filled in; else `ValueError`."""
    if config.training.steps is None:
        raise ValueError("the length is filled in when the images are counted")
    return config.training.steps


_GENERAL = (
    "a photo of a woman in a city street",
    "a portrait of an old man, studio light",
    "a child playing in a park",
    "a group of people at a table",
    "a cat on a sofa",
    "a dog running on a beach",
    "a bird on a branch",
    "a red car on a road",
    "a bicycle against a brick wall",
    "a bowl of fruit on a wooden table",
    "a cup of coffee and a book",
    "a mountain landscape with a lake",
    "a forest in autumn",
    "a sea shore at sunset",
    "a city skyline at night",
    "an old house with a garden",
    "the inside of a bright living room",
    "a watercolor painting of flowers",
    "an oil painting of a ship at sea",
    "a pencil drawing of a hand",
    "a flat illustration of a rocket",
    "an anime drawing of a girl with blue hair",
    "a page of printed text in black and white",
    "",
)
_GENERAL_EDITS = (
    "make it brighter",
    "make it a black and white picture",
    "change the background to a beach",
    "turn it into a watercolor painting",
    "make it night",
    "remove the background",
    "",
)
_EMBEDDED = (
    "a red circle on a blue background",
    "a green square on a white background",
    "a yellow triangle on a black background",
    "a purple cross on an orange background",
    "an orange circle on a green background",
    "a white square on a purple background",
    "a black triangle on a red background",
    "a blue cross on a yellow background",
    "a red square on a black background",
    "a green triangle on a yellow background",
    "a yellow cross on a blue background",
    "a purple circle on a white background",
    "an orange triangle on a purple background",
    "a white cross on a red background",
    "a black circle on an orange background",
    "a blue square on a green background",
    "",
    "",
)
_EMBEDDED_EDITS = (
    "make the shape red",
    "make the shape blue",
    "turn the shape green",
    "paint the shape yellow",
    "make the background white",
    "change the background to purple",
    "turn the shape into a circle",
    "turn the shape into a square",
    "change the shape to a triangle",
    "make the shape a cross",
    "keep the picture",
    "",
)


_CLASS = (
    "{}",
    "photo of {}",
    "portrait of {}, studio light",
    "{} in a city street",
    "{} on a beach at sunset",
    "{} in a forest",
    "{} in a bright living room",
    "{} from the side",
    "close-up of {}",
    "two of {} side by side",
    "oil painting of {}",
    "pencil drawing of {}",
)
_CLASS_EDITS = (
    "{}",
    "make {} brighter",
    "change the background of {} to a beach",
    "turn {} into a watercolor painting",
    "turn {} into a black and white picture",
    "make it night around {}",
)
_CLASS_EMBEDDED = (
    "a red {} on a blue background",
    "a green {} on a white background",
    "a yellow {} on a black background",
    "a purple {} on an orange background",
    "an orange {} on a green background",
    "a white {} on a purple background",
    "a black {} on a red background",
    "a blue {} on a yellow background",
)
_CLASS_EMBEDDED_EDITS = ("turn the shape into a {}", "change the shape to a {}")


def _class_prompts(config: RunConfig, *, edits: bool) -> tuple[str, ...]:
    if config.base.path == "embedded":
        templates = _CLASS_EMBEDDED_EDITS if edits else _CLASS_EMBEDDED
    else:
        templates = _CLASS_EDITS if edits else _CLASS
    word = config.dataset.preservation.class_word.strip()
    return tuple(template.format(word) for template in templates)


def preservation_prompts(config: RunConfig, *, edits: bool) -> tuple[str, ...]:
    """The prompts that the images for prior preservation are made from.

    ``dataset.preservation.count`` texts; an empty one is a blank prompt. None when off, and for the
    kinds that are held to what the base does with the dataset's own images. `edits` says whether
    the base is given control images.
    """
    settings = config.dataset.preservation
    if not settings.holds("trajectory", "class"):
        return ()
    embedded = config.base.path == "embedded"
    if edits:
        defaults = _EMBEDDED_EDITS if embedded else _GENERAL_EDITS
    else:
        defaults = _EMBEDDED if embedded else _GENERAL
    if settings.kind == "class":
        defaults = _class_prompts(config, edits=edits)
    prompts = tuple(settings.prompts) or defaults
    return tuple(prompts[index % len(prompts)] for index in range(settings.count))


def preservation_summary(config: RunConfig) -> str:
    """What keeps the base from forgetting, in words, for the summary of a run."""
    kept, ordinary = config.dataset.preservation, config.dataset.regularization
    to = {
        "trajectory": "",
        "class": f" for {kept.class_word!r}",
        "blank": " without a prompt",
        "output": f" with {kept.class_word!r} as the trigger word",
    }[kept.kind]
    own = f"{kept.share:.0%} of each batch is the base's own prediction{to}"
    parts = [own] if kept.share else []
    parts += [f"regularization images, weight {ordinary.weight:g}"] if ordinary.path else []
    return " and ".join(parts) or "nothing (dataset.preservation.share is 0)"
