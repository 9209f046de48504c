"""Reads what a demo image shows: shape, colours, frame.

Works from the pixels alone: the background is the colour of the border, the
shape is what differs from it, and its outline is compared with templates. No
drawing code is used, so that the checker can judge the drawing as well.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from types import MappingProxyType

import numpy as np

NO_SHAPE = "none"
GRID = 32
"""Edge length, in cells, of the grid on which outlines are compared."""

_COLORS: dict[str, tuple[int, int, int]] = {
    "red": (214, 36, 36),
    "green": (36, 158, 60),
    "blue": (42, 76, 218),
    "yellow": (244, 224, 52),
    "purple": (146, 50, 184),
    "orange": (244, 140, 26),
    "white": (246, 246, 246),
    "black": (18, 18, 18),
    "grey": (128, 128, 128),
}
# A frame is grey, uniform, and this share of the edge wide (6 of 64 pixels).
_FRAME_SHARE = 6 / 64
_SOFT_EDGE = 2 / 64
_FRAME_TOLERANCE = 40.0
_FRAME_CONTRAST = 36.0
_MIN_CONTRAST = 60.0
_MIN_AREA, _MAX_AREA = 0.01, 0.6
_MIN_OVERLAP = 0.74
_MAX_SCATTER = 24.0


@dataclass(frozen=True)
class Reading:
    """What the checker sees in one image.

    Attributes:
        shape: Name of the shape, or ``"none"``.
        shape_color: Name of the nearest colour of the shape, or ``"none"``.
        background_color: Name of the nearest colour of the background.
        framed: Whether a solid grey frame surrounds the image.
        confidence: Overlap of the outline with the best template, 0..1.
        center: Centre (x, y) of the bounding box of the shape, 0..1.
        extent: Width and height of that box as shares of the image, 0..1.
    """

    shape: str
    shape_color: str
    background_color: str
    framed: bool
    confidence: float
    center: tuple[float, float]
    extent: tuple[float, float]


_NO_OTHERS: Mapping[str, np.ndarray] = MappingProxyType({})


def read_image(pixels: np.ndarray, others: Mapping[str, np.ndarray] = _NO_OTHERS) -> Reading:
    """Reads an image of at most one shape (``"none"`` where none stands out) on a plain background.

    Args:
        others: Outlines of shapes beside `templates`, by name, as those.

    Raises:
        ValueError: If the array is not an RGB image of at least 16 pixels.
    """
    if pixels.ndim != 3 or pixels.shape[2] != 3 or min(pixels.shape[:2]) < 16:
        raise ValueError(f"expected an RGB image [H, W, 3], got shape {pixels.shape}")
    values = pixels.astype(np.float64)
    framed = _has_frame(values)
    height, width = values.shape[:2]
    # Inside a frame a soft edge is left out as well; shapes keep farther from it.
    skip = round((_FRAME_SHARE + _SOFT_EDGE) * min(height, width)) if framed else 0
    inner = values[skip : height - skip, skip : width - skip]
    background = _border_color(inner)
    mask = _foreground(inner, background)
    box = _bounding_box(mask)
    known = {**templates(), **others}
    plausible = _plausible(inner, mask, background)
    name, overlap = _shape_of(mask, box, known) if plausible else (NO_SHAPE, 0.0)
    color = NO_SHAPE if name == NO_SHAPE else nearest_color(_core_color(inner, mask))
    top, bottom, left, right = (edge + skip for edge in box)
    return Reading(
        shape=name,
        shape_color=color,
        background_color=nearest_color(background),
        framed=framed,
        confidence=overlap,
        center=((left + right) / 2 / width, (top + bottom) / 2 / height),
        extent=((right - left) / width, (bottom - top) / height),
    )


def nearest_color(rgb: np.ndarray) -> str:
    """Returns the name of the known colour nearest to an sRGB value ``[3]``."""
    distances = {name: _distance(rgb, np.array(value)) for name, value in _COLORS.items()}
    return min(distances, key=distances.__getitem__)


def _distance(one: np.ndarray, other: np.ndarray) -> float:
    return float(np.linalg.norm(one - other))


def _ring(values: np.ndarray, depth: float) -> np.ndarray:
    """Returns the closed one-pixel line ``depth`` (share of the edge) inside, ``[N, 3]``."""
    skip = int(depth * min(values.shape[:2]))
    inner = values[skip : values.shape[0] - skip, skip : values.shape[1] - skip]
    return np.concatenate([inner[0], inner[-1], inner[1:-1, 0], inner[1:-1, -1]])


def _has_frame(values: np.ndarray) -> bool:
    grey = np.array(_COLORS["grey"], dtype=np.float64)
    outer = np.concatenate([_ring(values, share / 64) for share in (0, 2, 4)])
    near_grey = np.linalg.norm(outer - grey, axis=1) < _FRAME_TOLERANCE
    inside = np.median(_ring(values, 9 / 64), axis=0)
    return bool(near_grey.mean() > 0.93) and _distance(inside, grey) > _FRAME_CONTRAST


def _border_color(values: np.ndarray) -> np.ndarray:
    return np.median(np.concatenate([_ring(values, 0), _ring(values, 1 / 64)]), axis=0)


def _foreground(values: np.ndarray, background: np.ndarray) -> np.ndarray:
    """Returns the pixels that lie nearer to the shape's colour than to the background."""
    contrast = np.linalg.norm(values - background, axis=2)
    strongest = float(np.quantile(contrast, 0.985))
    if strongest < _MIN_CONTRAST:
        return np.zeros(contrast.shape, dtype=bool)
    return _largest_part(contrast > strongest / 2)


def _largest_part(mask: np.ndarray) -> np.ndarray:
    """Keeps the largest connected region of a boolean mask ``[H, W]``."""
    labels = np.where(mask, np.arange(1, mask.size + 1).reshape(mask.shape), 0)
    while True:
        grown = labels.copy()
        grown[1:] = np.maximum(grown[1:], labels[:-1])
        grown[:-1] = np.maximum(grown[:-1], labels[1:])
        grown[:, 1:] = np.maximum(grown[:, 1:], labels[:, :-1])
        grown[:, :-1] = np.maximum(grown[:, :-1], labels[:, 1:])
        grown = np.where(mask, grown, 0)
        if np.array_equal(grown, labels):
            break
        labels = grown
    found, counts = np.unique(labels[mask], return_counts=True)
    return mask if not len(found) else labels == found[counts.argmax()]


def _bounding_box(mask: np.ndarray) -> tuple[int, int, int, int]:
    rows, columns = np.flatnonzero(mask.any(axis=1)), np.flatnonzero(mask.any(axis=0))
    if not len(rows):
        return 0, 0, 0, 0
    return int(rows[0]), int(rows[-1]) + 1, int(columns[0]), int(columns[-1]) + 1


def _core_color(values: np.ndarray, mask: np.ndarray) -> np.ndarray:
    return np.median(values[mask], axis=0)


def _plausible(values: np.ndarray, mask: np.ndarray, background: np.ndarray) -> bool:
    """Whether one uniform shape stands on one uniform background."""
    if not _MIN_AREA <= mask.mean() <= _MAX_AREA:
        return False
    inside = np.abs(values[mask] - _core_color(values, mask)).max(axis=1)
    outside = np.abs(values[~mask] - background).max(axis=1)
    return bool(np.median(inside) < _MAX_SCATTER and np.median(outside) < _MAX_SCATTER)


def _shape_of(
    mask: np.ndarray, box: tuple[int, int, int, int], known: Mapping[str, np.ndarray]
) -> tuple[str, float]:
    top, bottom, left, right = box
    aspect = (bottom - top) / (right - left)
    if not 0.7 < aspect < 1.4:
        return NO_SHAPE, 0.0
    cells = _resampled(mask[top:bottom, left:right])
    overlaps = {name: _overlap(cells, template) for name, template in known.items()}
    best = max(overlaps, key=overlaps.__getitem__)
    return (best if overlaps[best] >= _MIN_OVERLAP else NO_SHAPE), overlaps[best]


def _resampled(mask: np.ndarray) -> np.ndarray:
    """Samples a cropped mask at the centres of the grid cells, ``[GRID, GRID]``."""
    height, width = mask.shape
    rows = ((np.arange(GRID) + 0.5) * height / GRID).astype(int)
    columns = ((np.arange(GRID) + 0.5) * width / GRID).astype(int)
    return mask[rows][:, columns]


def _overlap(one: np.ndarray, other: np.ndarray) -> float:
    return float((one & other).sum() / max(1, (one | other).sum()))


@lru_cache(maxsize=1)
def templates() -> dict[str, np.ndarray]:
    """Returns each known outline, filling its bounding box, bool ``[GRID, GRID]``."""
    centers = (np.arange(GRID) + 0.5) / GRID * 2 - 1
    x, y = np.meshgrid(centers, centers)
    arm = 0.33
    return {
        "circle": x**2 + y**2 <= 1,
        "square": np.ones((GRID, GRID), dtype=bool),
        "triangle": np.abs(x) <= (y + 1) / 2,
        "cross": (np.abs(x) <= arm) | (np.abs(y) <= arm),
        "star": _star(x, y),
        "diamond": np.abs(x) + np.abs(y) <= 1,
        "house": np.abs(x) <= np.clip((y + 1) / 0.84, 0, 1),
        "corner": (x <= -0.167) | (y >= 0.167),
    }


def _star(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """A five-pointed star as two-of-five half planes around a pentagon."""
    # Scale the unit star so that its points touch the bounding box.
    low, high = -1.0, np.cos(np.pi / 5)
    across = x * np.sin(2 * np.pi / 5)
    down = low + (y + 1) / 2 * (high - low)
    # A point lies in the star if at most one edge of the inner pentagon hides it.
    inner = np.cos(2 * np.pi / 5) * 1.08
    angles = -np.pi / 2 + 2 * np.pi * np.arange(5) / 5
    outside = sum((across * np.cos(a) + down * np.sin(a) > inner).astype(int) for a in angles)
    return np.asarray(outside) <= 1
