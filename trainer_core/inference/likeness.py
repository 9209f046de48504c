"""How much generated images are like others, by what a vision model sees in them."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence

import torch
from PIL import Image
from torch import Tensor

from ..errors import InputError
from .comparison import Column, Likeness

Embed = Callable[[Image.Image], Tensor]
"""An upright RGB image to what a vision model sees in it, `[D]`."""


def measure_likeness(
    images: Sequence[Sequence[Image.Image]],
    columns: Sequence[Column],
    embed: Embed,
    references: Iterable[Image.Image],
    beside: str,
) -> Likeness:
    """Compare every generated image with every one of the dataset's.

    The mean of the cosines is CLIP-I, with DINO's vision model DINO, of Ruiz et al., DreamBooth,
    CVPR 2023, section 4.

    Args:
        images: By prompt, then by column.
        references: Images of the dataset, at least one; one at a time is held.
        beside: What `references` are, in words.

    Raises:
        InputError: When what is seen in an image is nothing, or not finite.
    """
    others = torch.stack([_direction(embed, each) for each in references])
    values = tuple(
        tuple(float((others @ _direction(embed, each)).mean()) for each in row) for row in images
    )
    trained = [
        index
        for index, each in enumerate(columns)
        if each.candidate.adapter is not None and each.candidate.strength
    ]
    means = {index: sum(row[index] for row in values) for index in trained}
    return Likeness(values, beside, max(means, key=lambda index: means[index], default=None))


def _direction(embed: Embed, image: Image.Image) -> Tensor:
    found = embed(image).flatten().double().cpu()
    length = found.norm()
    if not 0 < float(length) < math.inf:
        raise InputError(
            f"clip_vision sees {'nothing' if length == 0 else 'no finite numbers'} in an image",
            "numbers that say what is in it",
            "Load clip_vision again, or another one; or disconnect it.",
        )
    return found / length
