"""Samples the same prompts from the same noise in several ways, side by side."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image, ImageDraw, ImageFont, ImageOps

from ..config import RunConfig
from ..data.image import from_pixels, on_white
from ..data.plain_font import plain_font, plain_letters
from ..families.family import Family
from ..filesystem.storage import atomic_write, write_json
from ..offload.machine import Machine
from ..printable import single_line
from .encoder_source import MakeSource
from .pipeline import Candidate, sample_candidates

_CLIP_AXES = 4
LARGEST_SIDE = 384
"""Of an image in the grid, in pixels."""

_WIDEST = 12_000
_GAP, _EDGE, _SIDE, _NARROWEST = 10, 6, 240, 120
_SMALL_CELL, _MOST_LINES = 192, 60
_BEST, _LIKEST = "best on held-out images", "most like the images"
_PAPER, _INK, _SOFT = (251, 250, 248), (30, 35, 40), (94, 103, 112)


_BASE = Candidate()


@dataclass(frozen=True, slots=True)
class Column:
    """One way to generate, with its name.

    Attributes:
        step: Steps that the adapter was trained for; None for the base and for other files.
        file: Where the adapter lies, for the record.
        best: Whether it has the lowest loss on held-out images.
    """

    label: str
    candidate: Candidate = _BASE
    step: int | None = None
    file: str | None = None
    best: bool = False


@dataclass(frozen=True, slots=True)
class Likeness:
    """How much each image of a comparison is like the dataset's.

    Attributes:
        values: By prompt, then by column: mean cosine to all of the dataset's images, in [-1, 1].
        beside: What they are compared with, in words.
        best: Index of the column whose adapter has the highest mean over the prompts; None where no
            column has an adapter at work.
    """

    values: tuple[tuple[float, ...], ...]
    beside: str
    best: int | None


@dataclass(frozen=True, slots=True)
class Comparison:
    """Images of each prompt in each way.

    Attributes:
        seeds: The seed of each prompt's noise.
        images: By prompt, then by column.
        changes: By prompt, then by column: mean absolute difference from the first column's image,
            in [0, 1].
        likeness: How much they are like the dataset's images; None where no vision model says it.
    """

    columns: tuple[Column, ...]
    prompts: tuple[str, ...]
    seeds: tuple[int, ...]
    images: tuple[tuple[Image.Image, ...], ...]
    changes: tuple[tuple[float, ...], ...]
    likeness: Likeness | None = None

    def inert(self) -> list[str]:
        """Labels of columns with an adapter at work whose images are all those of the first."""
        return [
            column.label
            for index, column in enumerate(self.columns)
            if column.candidate.adapter is not None
            and column.candidate.strength
            and not any(row[index] for row in self.changes)
        ]

    def record(self) -> dict[str, Any]:
        """All but the images, as JSON values."""
        columns = [
            {
                "label": each.label,
                "step": each.step,
                "strength": each.candidate.strength if each.candidate.adapter else 0.0,
                "file": each.file,
                "best": each.best,
            }
            for each in self.columns
        ]
        rows = [
            {"prompt": prompt, "seed": seed, "changes": [round(each, 6) for each in changes]}
            for prompt, seed, changes in zip(self.prompts, self.seeds, self.changes, strict=True)
        ]
        found = {"columns": columns, "rows": rows, "inert": self.inert()}
        if self.likeness is None:
            return found
        for row, values in zip(rows, self.likeness.values, strict=True):
            row["likeness"] = [round(each, 6) for each in values]
        best = self.likeness.best
        label = None if best is None else self.columns[best].label
        return {**found, "likeness": {"beside": self.likeness.beside, "best": label}}


def compare(
    config: RunConfig,
    columns: Sequence[Column],
    make_source: MakeSource | None = None,
    stop: Callable[[], bool] | None = None,
    machine: Machine | None = None,
    notify: Callable[[int, int], None] | None = None,
    family: Family | None = None,
) -> Comparison:
    """Generate the run file's preview prompts in each way.

    Other arguments, and errors, are those of `pipeline.sample_candidates`.

    Args:
        columns: At least one; the others are measured against the first.
        notify: Told how many images of how many are made.
    """
    prompts, preview = config.preview.prompts, config.preview
    total = len(columns) * len(prompts)
    found: dict[tuple[int, int], Image.Image] = {}
    candidates = [each.candidate for each in columns]
    images = sample_candidates(
        config, candidates, make_source, stop=stop, machine=machine, family=family
    )
    for column, row, pixels in images:
        # Of a clip the frame in its middle.
        still = pixels[len(pixels) // 2] if pixels.ndim == _CLIP_AXES else pixels
        found[row, column] = from_pixels(still)
        if notify is not None:
            notify(len(found), total)
    images = tuple(
        tuple(found[row, column] for column in range(len(columns))) for row in range(len(prompts))
    )
    return Comparison(
        tuple(columns),
        tuple(prompts),
        tuple(preview.of_prompt(line, index).seed for index, line in enumerate(prompts)),
        images=images,
        changes=tuple(tuple(_change(row[0], each) for each in row) for row in images),
    )


def _change(first: Image.Image, other: Image.Image) -> float:
    one, two = (np.asarray(each, dtype=np.float64) for each in (first, other))
    return float(np.abs(one - two).mean() / 255.0)


def draw_grid(comparison: Comparison, side: int = LARGEST_SIDE) -> Image.Image:
    """Lay the images out: a column for each way, a row for each prompt, both with their names.

    Args:
        side: The longest side of an image in the grid; less where there are many columns.

    Returns:
        RGB; at most about 12 000 pixels wide.
    """
    cell = _cell_size(comparison, side)
    # Letters grow with the images: a wide grid is looked at from further away.
    letters = _Letters(min(2.0, max(1.0, cell[0] / _SMALL_CELL)))
    line, side = letters.line, letters.side
    wide = max(cell[0], _NARROWEST)
    labels = [letters.wrapped(column.label, wide) for column in comparison.columns]
    like = comparison.likeness
    marks = [
        [
            *(letters.wrapped(_BEST, wide) if column.best else []),
            *(letters.wrapped(_LIKEST, wide) if like and like.best == index else []),
        ]
        for index, column in enumerate(comparison.columns)
    ]
    below = line if like else 0
    captions = [
        [*letters.wrapped(prompt, side - _GAP), f"seed {seed}"]
        for prompt, seed in zip(comparison.prompts, comparison.seeds, strict=True)
    ]
    most = max(len(label) + len(mark) for label, mark in zip(labels, marks, strict=True))
    tops = [_EDGE + line * most + _EDGE]
    for lines in captions:
        tops.append(tops[-1] + max(cell[1] + below, line * len(lines)) + _GAP)
    across = wide + _GAP
    larger = cell[0] > comparison.images[0][0].width
    page = Image.new("RGB", (side + _GAP + len(labels) * across, tops[-1]), _PAPER)
    pen = ImageDraw.Draw(page)

    for index, (label, mark) in enumerate(zip(labels, marks, strict=True)):
        left = side + _GAP + index * across
        letters.write(pen, (left, _EDGE), label, _INK)
        letters.write(pen, (left, _EDGE + line * len(label)), mark, _SOFT)
    for number, (top, lines) in enumerate(zip(tops, captions, strict=False)):
        letters.write(pen, (_GAP, top), lines, _INK)
        for index, image in enumerate(comparison.images[number]):
            way = Image.Resampling.NEAREST if larger else Image.Resampling.LANCZOS
            # Prompts may have sizes of their own.
            shown = ImageOps.contain(on_white(image), cell, way)
            page.paste(shown, (side + _GAP + index * across, top))
            if like:
                text = [f"likeness {like.values[number][index]:.3f}"]
                letters.write(pen, (side + _GAP + index * across, top + cell[1]), text, _SOFT)
    return page


def _cell_size(comparison: Comparison, side: int) -> tuple[int, int]:
    wide, high = comparison.images[0][0].size
    room = (_WIDEST - 2 * _SIDE) // len(comparison.columns) - _GAP
    # Small images are shown larger, in whole multiples, so that they stay sharp.
    scale = min(side / max(wide, high), max(room, 16) / wide)
    scale = float(int(scale)) if scale > 1 else scale
    return max(1, round(wide * scale)), max(1, round(high * scale))


@dataclass(frozen=True, slots=True)
class _Letters:
    """How large a grid is written.

    Attributes:
        scale: 1 for small images.
    """

    scale: float

    @property
    def line(self) -> int:
        """Height of a line, in pixels."""
        return round(15 * self.scale)

    @property
    def side(self) -> int:
        """Room for the prompts beside the images, in pixels."""
        return round(_SIDE * self.scale)

    def write(
        self,
        pen: ImageDraw.ImageDraw,
        place: tuple[int, int],
        lines: Sequence[str],
        color: tuple[int, int, int],
    ) -> None:
        """Write lines below each other."""
        for number, text in enumerate(lines):
            at = place[0], place[1] + self.line * number
            pen.text(at, text, fill=color, font=self._font())

    def wrapped(self, text: str, width: int) -> list[str]:
        """A text in lines of a width in pixels; only one longer than any prompt is cut."""
        measured = self._font().getlength
        lines: list[str] = []
        for word in plain_letters(single_line(text)).split() or ["(no", "prompt)"]:
            rest = word
            if lines and measured(f"{lines[-1]} {word}") <= width:
                lines[-1], rest = f"{lines[-1]} {word}", ""
            while rest:
                fits = next((n for n in range(len(rest), 1, -1) if measured(rest[:n]) <= width), 1)
                lines.append(rest[:fits])
                rest = rest[fits:]
        return lines if len(lines) <= _MOST_LINES else [*lines[: _MOST_LINES - 1], "..."]

    def _font(self) -> ImageFont.FreeTypeFont | ImageFont.ImageFont:
        return plain_font(round(12 * self.scale))


def comparison_text(comparison: Comparison) -> str:
    """What was seen, a line for each column."""
    width = max(len(column.label) for column in comparison.columns)
    lines = ["How far each image is from the base's, in percent (mean over all pixels):"]
    for index, column in enumerate(comparison.columns):
        changes = "  ".join(f"{100 * row[index]:5.1f}" for row in comparison.changes)
        best = "  best on held-out images" if column.best else ""
        lines.append(f"  {column.label:<{width}}  {changes}{best}")
    if like := comparison.likeness:
        lines.append(f"How much each image is like {like.beside} (mean cosine, CLIP-I):")
        for index, column in enumerate(comparison.columns):
            values = "  ".join(f"{row[index]:5.3f}" for row in like.values)
            best = f"  {_LIKEST}" if like.best == index else ""
            lines.append(f"  {column.label:<{width}}  {values}{best}")
    lines += [
        f"Warning: {label} changes nothing: its images are the base's."
        for label in comparison.inert()
    ]
    return "\n".join(lines)


def save_comparison(comparison: Comparison, folder: Path) -> tuple[Path, Path]:
    """Write the grid, every image and ``comparison.json`` into a new folder.

    Args:
        folder: Takes a folder ``000``, ``001`` ... of its own; nothing is replaced.

    Returns:
        The grid and the record.

    Raises:
        StorageError: When it cannot be written.
    """
    taken = (int(p.name) for p in folder.glob("*") if p.name.isascii() and p.name.isdigit())
    place = folder / f"{max(taken, default=-1) + 1:03d}"
    record = comparison.record()
    for number, row in enumerate(comparison.images):
        names = [f"{number}_{index}.png" for index in range(len(row))]
        record["rows"][number]["images"] = names
        for name, image in zip(names, row, strict=True):
            atomic_write(place / name, lambda draft, image=image: image.save(draft, format="PNG"))
    grid = draw_grid(comparison)
    atomic_write(place / "grid.png", lambda draft: grid.save(draft, format="PNG"))
    write_json(place / "comparison.json", record)
    return place / "grid.png", place / "comparison.json"
