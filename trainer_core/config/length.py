"""How long a run is, when the run file does not say."""

from __future__ import annotations

import math

from .run import RunConfig

_SAMPLES_SEEN = 450
_ROUNDED_TO = 10


def resolved_length(config: RunConfig, images: int) -> RunConfig:
    """Fill in ``training.steps`` from the number of training images, where it is unset.

    A run sees ``450 sqrt(images)`` samples of its own images: 12 images 130 times each, 100 images
    45 times each. Samples that preserve the base are not counted.

    Args:
        config: The run file.
        images: Number of training images without regularization images, repeats not counted.

    Returns:
        The same run file with a number of steps.
    """
    training = config.training
    if training.steps is not None:
        return config
    samples = training.batch_size * training.gradient_accumulation_steps
    own = samples * (1 - config.dataset.preservation.share)
    steps = math.ceil(_SAMPLES_SEEN * math.sqrt(images) / own / _ROUNDED_TO) * _ROUNDED_TO
    steps = max(steps, training.schedule.warmup_steps)
    return config.model_copy(update={"training": training.model_copy(update={"steps": steps})})


def run_length(config: RunConfig) -> int:
    """Number of steps of a run file whose length is filled in.

    Raises:
        ValueError: When it is not.
    """
    if config.training.steps is None:
        raise ValueError("the length is filled in when the images are counted")
    return config.training.steps
