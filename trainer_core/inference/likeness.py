"""How much generated images are like others, by what a vision model sees in them."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from PIL import Image
from torch import Tensor

from .comparison import Column, Likeness

Embed = Callable[[Image.Image], Tensor]
"""An upright RGB image to what a vision model sees in it, `[D]`."""


def measure_likeness(
    images: Sequence[Sequence[Image.Image]],
    columns: Sequence[Column],
    embed: Embed,
    references: Sequence[Image.Image],
    beside: str,
) -> Likeness:
    """Compare every generated image with every one of the dataset's.

    The mean of the cosines is CLIP-I, with DINO's vision model DINO, of Ruiz et al., DreamBooth,
    CVPR 2023, section 4.

    Args:
        images: By prompt, then by column.
        columns: What generated them.
        references: Images of the dataset, at least one.
        beside: What `references` are, in words.
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
    return found / found.norm()
