"""The quality table of the base model, as Markdown."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

from trainer_core.demo.vocabulary import CAPTION_TEMPLATES

from .base_folder import LoadedBase, folder_size, load_base
from .measure import (
    held_out_edits,
    held_out_request,
    measure_captions,
    measure_edits,
    measure_reconstruction,
    share_right,
)
from .sampling import SamplingSettings

MINIMUM_PSNR = 31.0
MINIMUM_CAPTIONS = 0.95
MINIMUM_EDITS = 0.80


@dataclass(frozen=True)
class Row:
    """One line of the table.

    Attributes:
        what: What was measured.
        value: The measured number.
        unit: Its unit.
        bar: The least acceptable value, where there is one.
    """

    what: str
    value: float
    unit: str
    bar: float | None = None

    @property
    def passed(self) -> bool:
        """Whether the value reaches its bar."""
        return self.bar is None or self.value >= self.bar


def measure_folder(folder: Path, count: int = 100) -> list[Row]:
    """Measures a base model as it lies on disk.

    Args:
        folder: The Diffusers folder.
        count: Pictures per row of captions and edits.
    """
    base = load_base(folder)
    rows = [
        Row(f"reconstruction, {kind}", value, "dB", MINIMUM_PSNR if kind == "base shapes" else None)
        for kind, value in measure_reconstruction(base.codec.flat).items()
    ]
    rows += _caption_rows(base, count) + _edit_rows(base, count)
    rows.append(Row("size of the folder", folder_size(folder) / 1e6, "MB"))
    return rows


def _caption_rows(base: LoadedBase, count: int) -> list[Row]:
    asked = held_out_request(count)
    rows = []
    for wording, template in enumerate(CAPTION_TEMPLATES):
        right = share_right(measure_captions(base, asked, wording=wording))
        bar = MINIMUM_CAPTIONS if wording == 0 else None
        rows.append(Row(f"held-out captions, '{template}'", right, "share right", bar))
    plain = share_right(measure_captions(base, asked, settings=SamplingSettings(guidance=1.0)))
    rows.append(Row("held-out captions, no guidance", plain, "share right"))
    return rows


def _edit_rows(base: LoadedBase, count: int) -> list[Row]:
    edits = held_out_edits(count)
    return [
        Row(f"edits, {form}", share_right(measure_edits(base, edits, plus)), "share right", bar)
        for form, plus, bar in (
            ("edit form", False, MINIMUM_EDITS),
            ("edit-plus form", True, MINIMUM_EDITS),
        )
    ]


def as_markdown(rows: list[Row]) -> str:
    """Formats the rows as a Markdown table."""
    lines = ["| What | Measured | Bar |", "|---|---|---|"]
    for row in rows:
        bar = "" if row.bar is None else f"{row.bar:g}"
        lines.append(f"| {row.what} | {row.value:.2f} {row.unit} | {bar} |")
    return "\n".join(lines)


def as_json(rows: list[Row]) -> str:
    """Formats the rows as JSON."""
    return json.dumps([vars(row) for row in rows], indent=2)
