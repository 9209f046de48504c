"""`Framing`: an image, its layers, mask and control images cut alike, also where its mask is."""

from __future__ import annotations

import itertools
from dataclasses import astuple, dataclass
from pathlib import Path

import torch
from PIL import Image
from torch import Tensor

from ..config import DatasetSection
from ..errors import DatasetError
from ..types import ANY_CLIPS, Bucket, ClipPart, FrameGrid, Sample
from .crop import CENTER, Crop, crop_and_focus, fit_to_bucket
from .masks import (
    VERSION,
    center_of_mass,
    fit_mask,
    pool_mask,
    read_mask,
    read_mask_clip,
    same_shape,
)


@dataclass(frozen=True, slots=True)
class MaskSource:
    """The mask of an image, which is not read yet.

    Attributes:
        path: Its file; the image itself where that is its transparency.
        transparency: Whether the mask is how opaque ``path`` is.
        clip: Which frames of it are read, where it is a clip.
    """

    path: Path
    content: str
    size: tuple[int, int]
    transparency: bool = False
    invert: bool = False
    clip: ClipPart | None = None

    def read(self, animated: str) -> Image.Image:
        """Read it, of its own size, as `masks.read_mask` does.

        Raises:
            DatasetError: When it cannot be read, or has another shape than its image.
        """
        options = {"transparency": self.transparency, "invert": self.invert}
        return read_mask(self.path, self.size, animated, **options)

    def parts(self) -> tuple[str | int, ...]:
        """Everything that its pixels depend on."""
        kind = "alpha" if self.transparency else "brightness"
        inverted = ("inverted",) if self.invert else ()
        clip = () if self.clip is None else ("clip", *map(repr, astuple(self.clip)))
        return f"mask {VERSION}", self.content, *self.size, kind, *inverted, *clip


@dataclass(frozen=True, slots=True)
class Framing:
    """How an image, its layers, its mask and its control images are cut to a size.

    Attributes:
        mask: The image's; needed where it decides.
        focus: As `Sample.focus`; it decides before a mask.
    """

    crop: Crop = "center"
    mask: MaskSource | None = None
    focus: tuple[float, float] | None = None

    def fit(self, image: Image.Image, bucket: Bucket, animated: str) -> Image.Image:
        """Cut and resize an image to a size.

        A control image of another shape than the image has a part of its own in its middle.

        Raises:
            DatasetError: When the mask decides and cannot be read.
        """
        if self.crop != "mask" or self.focus is not None:
            return fit_to_bucket(image, bucket, *crop_and_focus(self.crop, self.focus))
        if self.mask is None or not same_shape(image.size, self.mask.size):
            return fit_to_bucket(image, bucket)
        return fit_to_bucket(image, bucket, "mask", center_of_mass(self.mask.read(animated)))

    def parts(self) -> tuple[str | int, ...]:
        """Everything that what is kept depends on; nothing for the middle."""
        if self.focus is not None and self.crop != "stretch":
            return ("crop around", *map(repr, self.focus))
        if self.crop == "center":
            return ()
        # Where no mask says what to keep, it is the middle.
        if self.crop == "mask":
            return ("crop mask", *self.mask.parts()) if self.mask else ()
        return (f"crop {self.crop}",)

    def latent_mask(
        self,
        bucket: Bucket,
        latents: tuple[int, int],
        patch: int,
        animated: str,
        clips: FrameGrid = ANY_CLIPS,
    ) -> Tensor:
        """The mask as it is trained: `[h, w]` in [0, 1], or `[f, h, w]` where it is a clip.

        Args:
            patch: Latents along a side of an image token.
            clips: How many frames each frame of the latents stands for.

        Raises:
            DatasetError: When the mask cannot be read, or has another shape than its image.
        """
        if self.mask is None:
            raise ValueError("an image without a mask has none at the size of its latents")
        source, crop, focus = self.mask, self.crop, self.focus
        if source.clip is None:
            mask = fit_mask(source.read(animated), source.size, bucket, crop=crop, focus=focus)
            return pool_mask(mask, latents, patch)
        frames = read_mask_clip(source.path, source.size, source.clip, invert=source.invert)
        fitted = (fit_mask(each, source.size, bucket, crop=crop, focus=focus) for each in frames)
        groups = (list(itertools.islice(fitted, clips.span(n))) for n in itertools.count())
        return torch.stack(
            [
                pool_mask(torch.stack(group).mean(0), latents, patch)
                for group in itertools.takewhile(bool, groups)
            ]
        )


def crop_of(sample: Sample, settings: DatasetSection) -> tuple[Crop, tuple[float, float]]:
    """Crop and focus of an image for `kept_box`: a person's, its mask's, or its own.

    The mask is decoded where ``dataset.crop`` is mask; one that cannot be read decides nothing.
    """
    if settings.crop != "mask" or sample.mask is None or sample.focus is not None:
        return crop_and_focus(settings.crop, sample.focus)
    size = sample.width, sample.height
    transparency = sample.mask == sample.image
    source = MaskSource(
        sample.mask, "", size, transparency=transparency, invert=settings.mask.invert
    )
    try:
        return "mask", center_of_mass(source.read(settings.animated))
    except DatasetError:
        return "mask", CENTER


MIDDLE = Framing()
"""What is kept where nothing else is said."""


def mirrored(image: Image.Image) -> Image.Image:
    """An image with left and right exchanged."""
    return image.transpose(Image.Transpose.FLIP_LEFT_RIGHT)
