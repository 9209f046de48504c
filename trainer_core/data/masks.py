"""Masks: which part of an image counts how much in the loss.

A mask is cut and resized as its image, then brought to the grid of the latents: the mean over the
pixels of a latent, then the largest of an image token, which all latents of the token get. A token
that shows a little of the subject so counts as subject. A mask that is a clip is averaged over the
frames of a latent as well; a still one holds for all frames. It is kept in this form, in [0, 1];
what foreground and background weigh is applied when a batch is read, so that other weights encode
nothing again.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from torch import Tensor, nn

from ..config.folders import MaskSection
from ..errors import DatasetError
from ..types import Bucket, ClipPart, Sample
from .clips import read_frames
from .crop import CENTER, Crop, crop_and_focus, kept_box
from .image import open_mask

VERSION = 1
"""Of the way masks are brought to the latents: another one gives other cached files."""

_SHAPE = 0.02
"""Share by which the aspect ratios of an image and its mask may differ: it is stretched so far."""

_TINT = (200, 30, 120)
_TINTED = 0.6
"""Colour and share of what lies over a part of an image that does not count."""


def read_mask(
    path: Path,
    size: tuple[int, int],
    animated: str = "error",
    *,
    transparency: bool = False,
    invert: bool = False,
) -> Image.Image:
    """Read the mask of an image: upright, of mode L and its own size; white counts.

    Args:
        size: Upright width and height of the image in pixels.
        transparency: Whether the mask is how opaque ``path`` is.

    Raises:
        DatasetError: When it cannot be read, or has another shape than its image.
    """
    return _checked(open_mask(path, animated, transparency=transparency), path, size, invert)


def read_mask_clip(
    path: Path, size: tuple[int, int], part: ClipPart, *, invert: bool = False
) -> Iterator[Image.Image]:
    """Read the frames of a clip's mask that is a clip itself, each as `read_mask`.

    Args:
        part: Which frames of the clip are trained; the mask's are those at the same times.

    Raises:
        DatasetError: As `read_mask`, or when it ends before the part.
    """
    return (_checked(each.convert("L"), path, size, invert) for each in read_frames(path, part))


def _checked(mask: Image.Image, path: Path, size: tuple[int, int], invert: bool) -> Image.Image:
    _require_shape(path, mask.size, size)
    return mask.point(lambda value: 255 - value) if invert else mask


def _require_shape(path: Path, found: tuple[int, int], size: tuple[int, int]) -> None:
    if same_shape(found, size):
        return
    raise DatasetError(
        f"the mask {path} has {found[0]} x {found[1]} pixels, and its image {size[0]} x {size[1]}",
        "a mask of its image's size or shape",
        "Save the mask again in the image's size, or set dataset.mask.source: none.",
    )


def same_shape(one: tuple[int, int], other: tuple[int, int]) -> bool:
    """Whether two sizes have one aspect ratio, but for whole pixels and `_SHAPE`."""
    across, down = one[0] * other[1], one[1] * other[0]
    rounded = max(sum(one), sum(other))
    return abs(across - down) <= max(rounded, _SHAPE * min(across, down))


def center_of_mass(mask: Image.Image) -> tuple[float, float]:
    """Where the white of a mask lies on the mean, as shares of its sides; black: in the middle."""
    values = np.asarray(mask, dtype=np.float64)
    total = values.sum()
    if not total:
        return CENTER
    high, wide = values.shape
    across = (values.sum(0) * (np.arange(wide) + 0.5)).sum() / (total * wide)
    down = (values.sum(1) * (np.arange(high) + 0.5)).sum() / (total * high)
    return float(across), float(down)


def fit_mask(
    mask: Image.Image,
    size: tuple[int, int],
    bucket: Bucket,
    crop: Crop = "center",
    focus: tuple[float, float] | None = None,
) -> Tensor:
    """Cut and resize a mask as `crop.fit_to_bucket` does its image.

    Args:
        mask: Of mode L, as `read_mask` gives it.

    Returns:
        `[H, W]` of the bucket, float32 in [0, 1]: the mean of the mask's pixels in each.
    """
    if crop == "mask":
        focus = focus or center_of_mass(mask)
    left, top, right, bottom = kept_box(size, bucket, *crop_and_focus(crop, focus))
    across, down = mask.width / size[0], mask.height / size[1]
    box = left * across, top * down, right * across, bottom * down
    # Unlike the image's filter it never goes beyond black and white.
    fitted = mask.convert("F").resize((bucket.width, bucket.height), Image.Resampling.BOX, box=box)
    return torch.from_numpy(np.array(fitted, dtype=np.float32)) / 255.0


def pool_mask(mask: Tensor, latents: tuple[int, int], patch: int) -> Tensor:
    """Bring a mask to the grid of the latents, `[h, w]` in [0, 1], alike in all latents of a token.

    Source: the mask weighting of the qwen-image-finetune trainer:
    ``avg_pool2d(8)``, then the largest of 2 x 2.

    Args:
        mask: `[H, W]` in [0, 1].
        latents: h and w; they divide H and W to the same number.
        patch: Latents along a side of an image token.

    Raises:
        ValueError: When the sides do not divide.
    """
    high, wide = latents
    pixels = mask.shape[0] // high
    if mask.shape != (high * pixels, wide * pixels) or high % patch or wide % patch:
        raise ValueError(f"a mask of {list(mask.shape)} has no grid of {high} x {wide} latents")
    means = nn.functional.avg_pool2d(mask[None], pixels)
    tokens = nn.functional.max_pool2d(means, patch)
    return tokens[0].repeat_interleave(patch, 0).repeat_interleave(patch, 1)


def mask_weights(mask: Tensor, settings: MaskSection, clean: Tensor | None = None) -> Tensor:
    """What each place of the latents weighs in the loss.

    ``w = m foreground + (1 - m) background``, and with ``normalize`` divided by its mean: the
    weights of an image then have mean 1, and a mask that is the same everywhere changes nothing.

    Args:
        mask: `[h, w]` or `[f, h, w]` in [0, 1].
        clean: `[f]` as in `CachedSample`: such frames are not part of the mean.

    Returns:
        `[1, h, w]` or `[1, f, h, w]`, float32; zeros where nothing counts (`counts_nothing`),
        never NaN.
    """
    exact = mask.double()
    weights = exact * settings.foreground + (1.0 - exact) * settings.background
    # From the mean of the mask: of a mask of ones it is exactly the weight of each place.
    predicted = exact if clean is None or mask.ndim == 2 else exact[clean == 0]
    share = predicted.mean().item()
    mean = share * settings.foreground + (1.0 - share) * settings.background
    if settings.normalize and mean > 0.0:
        weights = weights / mean
    return weights.float()[None]


def batch_weights(
    masks: Sequence[Tensor | None],
    settings: MaskSection,
    clean: Sequence[Tensor | None] | None = None,
) -> Tensor | None:
    """The weights of a batch.

    Args:
        masks: `[h, w]` of each sample, or `[f, h, w]` where its frames have masks of their own;
            None where all of an image counts.

    Returns:
        `[B, 1, h, w]`, or `[B, 1, f, h, w]` if a mask has frames; 1 for images without a mask.
        None where all weights are 1.
    """
    shape = max((mask.shape for mask in masks if mask is not None), key=len, default=None)
    if shape is None:
        return None
    known = [None] * len(masks) if clean is None else clean
    weights = torch.stack(
        [
            torch.ones(1, *shape) if m is None else mask_weights(m, settings, c).expand(1, *shape)
            for m, c in zip(masks, known, strict=True)
        ]
    )
    return None if bool((weights == 1.0).all()) else weights


def predicted_alone(weights: Tensor | None, clean: Sequence[Tensor | None]) -> Tensor | None:
    """Let only frames of latents that are predicted count.

    Args:
        weights: `[B, 1, h, w]`, the same for all frames, or `[B, 1, f, h, w]`; None for 1
            everywhere.
        clean: `[f]` of each sample, 1 for a frame that is given and not predicted; None where all
            are predicted.

    Returns:
        `[B, 1, f, h, w]`, or `[B, 1, f, 1, 1]` without weights; of each sample the mean over its
        frames is that of ``weights`` over those that are predicted. ``weights`` where all frames
        of all samples are predicted.
    """
    first = next((each for each in clean if each is not None), None)
    if first is None:
        return weights
    noisy = torch.stack([torch.ones_like(first) if c is None else 1.0 - c.float() for c in clean])
    counted = (noisy / noisy.mean(1, keepdim=True))[:, None, :, None, None]
    if weights is None:
        return counted
    return (weights if weights.ndim == 5 else weights[:, :, None]) * counted


def counts_nothing(mask: Tensor, settings: MaskSection) -> bool:
    """Whether no place of a mask has a weight, so that its image would train nothing."""
    return not bool(mask_weights(mask, settings).any())


def may_count_nothing(settings: MaskSection) -> bool:
    """Whether there can be such masks at all."""
    return not (settings.foreground and settings.background)


def nothing_counts_error(name: str, path: Path | None = None) -> DatasetError:
    """Explain that nothing of an image would be trained.

    Args:
        path: Its mask; None where a finished cache does not know it.
    """
    mask = "its mask" if path is None else f"its mask {path}"
    return DatasetError(
        f"nothing of {name} counts: {mask} is the same everywhere in what is trained of "
        "it, and that has weight 0",
        "a mask with some white, in the part of the image that is kept",
        "Correct or remove the mask, set dataset.crop: mask, or raise dataset.mask.background; "
        "where all masks are the other way round, set dataset.mask.invert: true.",
    )


def require_masks_fit(
    samples: Sequence[Sample],
    variant: str,
    channels: int,
    filled: Collection[str],
    layered: Collection[str],
) -> None:
    """Refuse masks where the base trains something else of an image's areas.

    Args:
        channels: Of the pixels that its VAE reads.
        filled: The family's variants that fill an area of the image.

    Raises:
        DatasetError: When a sample has a mask that such a base would not train with.
    """
    masked = next((sample for sample in samples if sample.mask is not None), None)
    if masked is None:
        return
    why = ""
    if variant in filled:
        why = "fills an area of its own in each image"
    elif variant in layered:
        why = "trains the transparency of each layer"
    elif channels == 4 and masked.mask == masked.image:
        why = "trains transparency itself"
    if why:
        raise DatasetError(
            f"{masked.name} has the mask {masked.mask}, and the variant {variant} {why}",
            "no mask for such a base",
            "Set dataset.mask.source: none.",
        )


def masked_preview(image: Image.Image, mask: Image.Image | Tensor) -> Image.Image:
    """Show what of an image counts, in RGB and its size: what does not count is tinted.

    Args:
        mask: Of mode L, or `[h, w]` in [0, 1]; of any size, and laid over the whole image.
    """
    if isinstance(mask, Tensor):
        values = mask.detach().float().clamp(0, 1).mul(255).round().to(torch.uint8)
        mask = Image.fromarray(values.cpu().numpy())
    shown = image.convert("RGB")
    over = Image.blend(shown, Image.new("RGB", shown.size, _TINT), _TINTED)
    counted = mask.convert("L").resize(shown.size, Image.Resampling.BOX)
    return Image.composite(shown, over, counted)
