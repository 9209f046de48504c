"""Small images of workflows: what a run drew, or the graph itself where none can be run here."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from PIL import Image, ImageDraw, ImageFont

SIDE = 512
_GROUND, _TEXT, _QUIET = "#1b1c1e", "#f2f2f2", "#a9adb3"
_FRAME, _NODE, _TITLE, _NOTE = "#22404f", "#3a3d42", "#565b62", "#6b5430"
_OURS = "#2f6fd0"
_LINKS: Mapping[str, str] = {
    "MODEL": "#b39ddb",
    "CLIP": "#ffd500",
    "VAE": "#ff6e6e",
    "IMAGE": "#64b5f6",
    "LATENT": "#ff9cf9",
    "CONDITIONING": "#ffa931",
}
_MARGIN = 16
_BAR = 30


def of_images(title: str, columns: Sequence[tuple[str, Sequence[Image.Image]]]) -> Image.Image:
    """A table of images that a run drew.

    Args:
        title: Above all.
        columns: What each column shows, and its images from above to below.
    """
    canvas = _canvas(title)
    draw = ImageDraw.Draw(canvas)
    rows = max(len(images) for _, images in columns)
    top, gap = 92, 10
    width = (SIDE - 2 * _MARGIN - gap * (len(columns) - 1)) // len(columns)
    side = min(width, (SIDE - top - _MARGIN - gap * (rows - 1)) // rows)
    left = (SIDE - side * len(columns) - gap * (len(columns) - 1)) // 2
    for index, (label, images) in enumerate(columns):
        x = left + index * (side + gap)
        draw.text((x + side / 2, top - 8), label, _QUIET, _font(17), anchor="ms")
        for row, image in enumerate(images):
            # The embedded base draws 64 pixels; its own pixels are shown and none are made up.
            shown = image.convert("RGB").resize((side, side), Image.Resampling.NEAREST)
            canvas.paste(shown, (x, top + row * (side + gap)))
    return canvas


def of_graph(title: str, workflow: Mapping[str, Any]) -> Image.Image:
    """A drawing of a workflow's nodes and links where they stand.

    Args:
        title: Above all.
        workflow: The workflow in UI format.
    """
    canvas = _canvas(title)
    # Drawn larger and made smaller, which smooths the lines.
    factor = 3
    top = 76
    area = (factor * (SIDE - 2 * _MARGIN), factor * (SIDE - top - _MARGIN))
    place = _Scale([group["bounding"] for group in workflow["groups"]], area)
    layer = Image.new("RGB", area, _GROUND)
    draw = ImageDraw.Draw(layer)
    for group in workflow["groups"]:
        draw.rounded_rectangle(place.box(group["bounding"]), 12, fill=_FRAME)
    nodes = {node["id"]: node for node in workflow["nodes"]}
    for _, source, output, target, slot, kind in workflow["links"]:
        begin = place.socket(nodes[source], output, right=True)
        end = place.socket(nodes[target], slot, right=False)
        draw.line(_curve(begin, end), fill=_LINKS.get(kind, "#9fb39a"), width=4)
    for node in workflow["nodes"]:
        box = place.box([*node["pos"], *node["size"]], above=_BAR)
        note = node["type"] == "MarkdownNote"
        ours = node["type"].startswith("AdapterTrainer")
        draw.rounded_rectangle(box, 8, fill=_NOTE if note else _NODE)
        bar = (box[0], box[1], box[2], box[1] + _BAR * place.scale)
        draw.rounded_rectangle(bar, 8, fill=_OURS if ours else _TITLE)
    canvas.paste(layer.resize((area[0] // factor, area[1] // factor)), (_MARGIN, top))
    return canvas


class _Scale:
    """From the workflow's places to a drawing's pixels.

    Args:
        frames: Left, top, width and height of everything.
        area: Width and height of the drawing.
    """

    def __init__(self, frames: Sequence[Sequence[float]], area: tuple[int, int]) -> None:
        left, top = (min(frame[axis] for frame in frames) for axis in (0, 1))
        right, bottom = (max(frame[axis] + frame[axis + 2] for frame in frames) for axis in (0, 1))
        self.scale = min(area[0] / (right - left), area[1] / (bottom - top))
        self._x = (area[0] - (right - left) * self.scale) / 2 - left * self.scale
        self._y = (area[1] - (bottom - top) * self.scale) / 2 - top * self.scale

    def box(self, frame: Sequence[float], above: float = 0) -> tuple[float, float, float, float]:
        """Left, top, right and bottom of a frame with what stands above it."""
        left, top, width, height = frame
        x, y = self._point(left, top - above)
        return x, y, x + width * self.scale, y + (height + above) * self.scale

    def socket(self, node: Mapping[str, Any], slot: int, *, right: bool) -> tuple[float, float]:
        """Where a node's input or output is."""
        x = node["pos"][0] + (node["size"][0] if right else 0)
        return self._point(x, node["pos"][1] + 14 + 20 * slot)

    def _point(self, x: float, y: float) -> tuple[float, float]:
        return x * self.scale + self._x, y * self.scale + self._y


def _curve(begin: tuple[float, float], end: tuple[float, float]) -> list[tuple[float, float]]:
    reach = max(30.0, abs(end[0] - begin[0]) / 3)
    corners = (begin, (begin[0] + reach, begin[1]), (end[0] - reach, end[1]), end)
    points = []
    for step in range(25):
        t = step / 24
        shares = ((1 - t) ** 3, 3 * t * (1 - t) ** 2, 3 * t**2 * (1 - t), t**3)
        x, y = (
            sum(s * corner[axis] for s, corner in zip(shares, corners, strict=True))
            for axis in (0, 1)
        )
        points.append((x, y))
    return points


def _canvas(title: str) -> Image.Image:
    canvas = Image.new("RGB", (SIDE, SIDE), _GROUND)
    ImageDraw.Draw(canvas).multiline_text(
        (SIDE / 2, 12), title, _TEXT, _font(23), anchor="ma", align="center", spacing=4
    )
    return canvas


def _font(size: int) -> Any:
    return ImageFont.load_default(size)
