"""Draws the pictures the embedded base model is trained and measured on.

Every picture is an RGB array, uint8 ``[64, 64, 3]``. Shapes are drawn four
times larger and averaged down, which gives smooth edges.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np
from PIL import Image, ImageDraw

from trainer_core.demo.vocabulary import COLORS, IMAGE_SIZE, SHAPES, Combination

from .vocabulary import FRAME_COLOR, FRAME_WIDTH

OVERSAMPLING = 4
COLOR_JITTER = 8
MIN_RADIUS = 12.0
MAX_RADIUS = 20.0
# A shape never reaches into this border, so a frame can be added around it.
CLEAR_BORDER = 8.0

Color = tuple[int, int, int]


@dataclass(frozen=True)
class Bar:
    """A bar along one whole side of a picture.

    Attributes:
        side: ``left``, ``right``, ``top`` or ``bottom``.
        color: sRGB value.
        width: In pixels, less than ``CLEAR_BORDER``.
    """

    side: str
    color: Color
    width: float


@dataclass(frozen=True)
class Scene:
    """Everything needed to draw one picture.

    Attributes:
        shape: Name of the shape.
        color: sRGB value of the shape.
        background: sRGB value of the background.
        center: Position (x, y) of the shape, in pixels.
        radius: Half the extent of the shape, in pixels.
        framed: Whether a grey frame surrounds the picture.
        bars: Bars along single sides of the picture.
    """

    shape: str
    color: Color
    background: Color
    center: tuple[float, float]
    radius: float
    framed: bool = False
    bars: tuple[Bar, ...] = ()


def jittered(color: Color, random: np.random.Generator, amount: int = COLOR_JITTER) -> Color:
    """Returns the colour moved by at most ``amount`` steps per channel."""
    moved = np.asarray(color) + random.integers(-amount, amount + 1, size=3)
    red, green, blue = np.clip(moved, 0, 255).tolist()
    return red, green, blue


def random_scene(combination: Combination, random: np.random.Generator) -> Scene:
    """Places a combination at a random position, in a random size."""
    radius = random.uniform(MIN_RADIUS, MAX_RADIUS)
    low, high = radius + CLEAR_BORDER, IMAGE_SIZE - radius - CLEAR_BORDER
    return Scene(
        shape=combination.shape,
        color=jittered(COLORS[combination.color], random),
        background=jittered(COLORS[combination.background], random),
        center=(random.uniform(low, high), random.uniform(low, high)),
        radius=radius,
    )


def with_frame(scene: Scene) -> Scene:
    """Returns the same scene with the frame of the demo edit."""
    return replace(scene, framed=True)


def _star_outline() -> list[tuple[float, float]]:
    points = []
    for corner in range(10):
        reach = 1.06 if corner % 2 == 0 else 0.44
        angle = -math.pi / 2 + corner * math.pi / 5
        points.append((reach * math.cos(angle), reach * math.sin(angle) + 0.06))
    return points


def _cross_outline() -> list[tuple[float, float]]:
    arm = 0.33
    quarter = [(arm, -1.0), (arm, -arm), (1.0, -arm)]
    points: list[tuple[float, float]] = []
    for _ in range(4):
        points += quarter
        quarter = [(-y, x) for x, y in quarter]
    return points


OUTLINES: dict[str, list[tuple[float, float]]] = {
    "square": [(-0.87, -0.87), (0.87, -0.87), (0.87, 0.87), (-0.87, 0.87)],
    "triangle": [(0.0, -0.95), (1.0, 0.85), (-1.0, 0.85)],
    "cross": _cross_outline(),
    "star": _star_outline(),
    "diamond": [(0.0, -1.05), (1.05, 0.0), (0.0, 1.05), (-1.05, 0.0)],
    "house": [(-0.9, 0.95), (-0.9, -0.15), (0.0, -0.95), (0.9, -0.15), (0.9, 0.95)],
    "corner": [(-0.9, -0.9), (-0.15, -0.9), (-0.15, 0.15), (0.9, 0.15), (0.9, 0.9), (-0.9, 0.9)],
}
"""Corners of the polygonal shapes in units of the radius (y points down)."""


def paint_shape(
    canvas: ImageDraw.ImageDraw, scene: Scene, scale: float = float(OVERSAMPLING)
) -> None:
    """Paint a scene's shape on a canvas that has ``scale`` pixels for each of the picture's."""
    x, y = (scale * value for value in scene.center)
    radius = scale * scene.radius
    if scene.shape == "circle":
        canvas.ellipse((x - radius, y - radius, x + radius, y + radius), fill=scene.color)
        return
    corners = [(x + radius * dx, y + radius * dy) for dx, dy in OUTLINES[scene.shape]]
    canvas.polygon(corners, fill=scene.color)


def _paint_frame(canvas: ImageDraw.ImageDraw, color: Color, width: float) -> None:
    edge = IMAGE_SIZE * OVERSAMPLING
    canvas.rectangle((0, 0, edge - 1, edge - 1), outline=color, width=round(width * OVERSAMPLING))


def _paint_bar(canvas: ImageDraw.ImageDraw, bar: Bar) -> None:
    last = IMAGE_SIZE * OVERSAMPLING - 1
    inner = round(bar.width * OVERSAMPLING) - 1
    boxes = {
        "left": (0, 0, inner, last),
        "right": (last - inner, 0, last, last),
        "top": (0, 0, last, inner),
        "bottom": (0, last - inner, last, last),
    }
    canvas.rectangle(boxes[bar.side], fill=bar.color)


def _blank(color: Color) -> Image.Image:
    edge = IMAGE_SIZE * OVERSAMPLING
    return Image.new("RGB", (edge, edge), color)


def _averaged(image: Image.Image) -> np.ndarray:
    return np.asarray(image.reduce(OVERSAMPLING), dtype=np.uint8)


def draw(scene: Scene) -> np.ndarray:
    """Draws a scene.

    Args:
        scene: What to draw.

    Returns:
        The picture, uint8 ``[64, 64, 3]``.
    """
    image = _blank(scene.background)
    canvas = ImageDraw.Draw(image)
    paint_shape(canvas, scene)
    for bar in scene.bars:
        _paint_bar(canvas, bar)
    if scene.framed:
        _paint_frame(canvas, FRAME_COLOR, FRAME_WIDTH)
    return _averaged(image)


def _any_color(random: np.random.Generator) -> Color:
    if random.random() < 0.5:
        names = list(COLORS)
        return jittered(COLORS[names[random.integers(len(names))]], random)
    red, green, blue = random.integers(0, 256, size=3).tolist()
    return red, green, blue


def _random_polygon(canvas: ImageDraw.ImageDraw, random: np.random.Generator) -> None:
    edge = IMAGE_SIZE * OVERSAMPLING
    corners = int(random.integers(3, 9))
    center = random.uniform(0.3, 0.7, size=2) * edge
    angles = np.sort(random.uniform(0, 2 * math.pi, size=corners))
    reach = random.uniform(0.12, 0.42, size=corners) * edge
    points = center + np.stack([np.cos(angles), np.sin(angles)], axis=1) * reach[:, None]
    canvas.polygon([tuple(point) for point in points.tolist()], fill=_any_color(random))


def _random_ring(canvas: ImageDraw.ImageDraw, random: np.random.Generator) -> None:
    edge = IMAGE_SIZE * OVERSAMPLING
    x, y = random.uniform(0.35, 0.65, size=2) * edge
    radius = random.uniform(0.15, 0.32) * edge
    width = int(random.uniform(3, 8) * OVERSAMPLING)
    box = (x - radius, y - radius, x + radius, y + radius)
    canvas.ellipse(box, outline=_any_color(random), width=width)


def _random_stripes(canvas: ImageDraw.ImageDraw, random: np.random.Generator) -> None:
    edge = IMAGE_SIZE * OVERSAMPLING
    color, upright = _any_color(random), random.random() < 0.5
    step = int(random.uniform(10, 24) * OVERSAMPLING)
    start = int(random.integers(0, step))
    for low in range(start, edge, step):
        high = low + step // 2
        canvas.rectangle((low, 0, high, edge) if upright else (0, low, edge, high), fill=color)


def _random_shapes(canvas: ImageDraw.ImageDraw, random: np.random.Generator, count: int) -> None:
    names = (*SHAPES, "star", "star")
    for _ in range(count):
        radius = random.uniform(6 if count > 1 else 10, 16 if count > 1 else 23)
        center = random.uniform(radius, IMAGE_SIZE - radius, size=2).tolist()
        name = names[random.integers(len(names))]
        color = _any_color(random)
        paint_shape(canvas, Scene(name, color, color, (center[0], center[1]), radius))


def draw_varied(random: np.random.Generator) -> np.ndarray:
    """Draws a picture of a much wider kind than the captions cover.

    The autoencoder learns from these, so that it can also show what adapters
    teach later: stars, rings, polygons, stripes, several shapes, frames.

    Args:
        random: Source of all choices.

    Returns:
        The picture, uint8 ``[64, 64, 3]``.
    """
    image = _blank(_any_color(random))
    canvas = ImageDraw.Draw(image)
    kind = random.random()
    if kind < 0.60:
        _random_shapes(canvas, random, 1)
    elif kind < 0.72:
        _random_shapes(canvas, random, 2)
    elif kind < 0.84:
        _random_polygon(canvas, random)
    elif kind < 0.92:
        _random_ring(canvas, random)
    elif kind < 0.97:
        _random_stripes(canvas, random)
    if random.random() < 0.25:
        color = jittered(FRAME_COLOR, random) if random.random() < 0.6 else _any_color(random)
        _paint_frame(canvas, color, random.uniform(3, 9))
    return _averaged(image)
