"""Measures the base model with the automatic picture checker."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch

from trainer_core.demo.checker import Reading, read_image
from trainer_core.demo.vocabulary import Combination

from .base_folder import LoadedBase
from .examples import EditExample, random_edit
from .flat_vae import FlatVAE
from .sampling import SamplingSettings, sample
from .vae import base_image, framed_image, psnr_of_flat, star_image
from .vocabulary import held_out_combinations

# Farthest that an edit may move a shape or change its size, as a share of the
# picture. Differing outlines of equal radius differ by up to 0.09 by themselves.
POSITION_TOLERANCE = 0.07
EXTENT_TOLERANCE = 0.15


@dataclass(frozen=True)
class CaptionResult:
    """One sampled picture and what the checker saw in it.

    Attributes:
        asked: What the caption said.
        seen: What the picture shows.
        picture: uint8 ``[64, 64, 3]``.
    """

    asked: Combination
    seen: Reading
    image: np.ndarray

    @property
    def right(self) -> bool:
        """Whether shape and both colours are as asked, without a frame."""
        return shows(self.seen, self.asked) and not self.seen.framed


@dataclass(frozen=True)
class EditResult:
    """One edited picture and what the checker saw in it.

    Attributes:
        example: The edit that was asked for.
        seen: What the edited picture shows.
        picture: uint8 ``[64, 64, 3]``.
    """

    example: EditExample
    seen: Reading
    image: np.ndarray

    @property
    def right(self) -> bool:
        """Whether the asked attribute changed and everything else was kept."""
        return (
            shows(self.seen, self.example.target)
            and not self.seen.framed
            and in_same_place(read_image(self.example.target_image), self.seen)
        )


def shows(seen: Reading, asked: Combination) -> bool:
    """Whether a reading names the shape and both colours of a combination."""
    return (seen.shape, seen.shape_color, seen.background_color) == tuple(asked)


def in_same_place(one: Reading, other: Reading) -> bool:
    """Whether two shapes have about the same centre and size."""
    moved = np.abs(np.subtract(one.center, other.center)).max()
    grown = np.abs(np.subtract(one.extent, other.extent)).max()
    return bool(moved <= POSITION_TOLERANCE and grown <= EXTENT_TOLERANCE)


def _noise(count: int, width: int, seed: int) -> torch.Tensor:
    # One generator per picture: the first pictures stay the same for any count.
    return torch.stack(
        [
            torch.randn(16, width, generator=torch.Generator().manual_seed(seed * 10_000 + i))
            for i in range(count)
        ]
    )


def measure_captions(
    base: LoadedBase,
    asked: list[Combination],
    seed: int = 1,
    settings: SamplingSettings | None = None,
    wording: int = 0,
) -> list[CaptionResult]:
    """Samples one picture per combination and reads it.

    Args:
        base: The base model.
        asked: What to draw.
        seed: Seed of the noise.
        settings: How to sample.
        wording: Which caption template to use.
    """
    text = base.conditioner.captions([c.caption(wording) for c in asked])
    empty = base.conditioner.captions([""] * len(asked))
    noise = _noise(len(asked), base.transformer.config.in_channels, seed)
    tokens = sample(base.transformer, noise, text, empty, settings=settings)
    images = base.codec.decode(tokens)
    return [
        CaptionResult(c, read_image(image), image) for c, image in zip(asked, images, strict=True)
    ]


def held_out_request(count: int) -> list[Combination]:
    """Returns held-out combinations in turn, ``count`` in all."""
    unseen = held_out_combinations()
    return [unseen[i % len(unseen)] for i in range(count)]


def held_out_edits(count: int, seed: int = 2) -> list[EditExample]:
    """Returns edits of pictures whose combinations were never trained on."""
    random = np.random.default_rng(seed)
    return [random_edit(held_out_combinations(), frozenset(), random) for _ in range(count)]


def measure_edits(
    base: LoadedBase,
    edits: list[EditExample],
    plus: bool = False,
    seed: int = 3,
    settings: SamplingSettings | None = None,
) -> list[EditResult]:
    """Edits one picture per example and reads the outcome.

    Args:
        base: The base model.
        edits: What to edit and how.
        plus: Whether to ask in the form of ``QwenImageEditPlusPipeline``.
        seed: Seed of the noise.
        settings: How to sample.
    """
    images = np.stack([edit.control_image for edit in edits])
    words = [edit.instruction for edit in edits]
    text = base.conditioner.instructions(words, images, plus)
    empty = base.conditioner.instructions([""] * len(edits), images, plus)
    noise = _noise(len(edits), base.transformer.config.in_channels, seed)
    controls = base.codec.encode(images)
    tokens = sample(base.transformer, noise, text, empty, controls, settings)
    edited = base.codec.decode(tokens)
    return [
        EditResult(edit, read_image(image), image)
        for edit, image in zip(edits, edited, strict=True)
    ]


def measure_reconstruction(flat: FlatVAE, count: int = 200) -> dict[str, float]:
    """Returns the mean PSNR in dB on unseen pictures, for each kind of picture."""
    return {
        "base shapes": psnr_of_flat(flat, base_image, count),
        "stars": psnr_of_flat(flat, star_image, count),
        "framed": psnr_of_flat(flat, framed_image, count),
    }


def share_right(results: list[CaptionResult] | list[EditResult]) -> float:
    """Returns the share of right results, 0..1."""
    return sum(result.right for result in results) / len(results)
