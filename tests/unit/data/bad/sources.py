"""Bad input in folders on disk: names, links, layouts, headers."""

from __future__ import annotations

from pathlib import Path

from tests.fixtures.bad_input import BadInput, write_image, write_pair
from trainer_core.config import DatasetSection


def _settings(folder: Path, **options) -> DatasetSection:
    return DatasetSection(path=str(folder), **options)


def _no_caption(folder: Path) -> DatasetSection:
    write_pair(folder / "a.png")
    write_image(folder / "b.png")
    return _settings(folder)


def _lonely_caption(folder: Path) -> DatasetSection:
    write_pair(folder / "a.png")
    (folder / "b.txt").write_text("no image", encoding="utf-8")
    return _settings(folder, missing_image="skip")


CASES = [
    BadInput("caption missing", _no_caption, "error", ["b.png", "dataset.missing_caption"]),
    BadInput("caption without image", _lonely_caption, "left_out", ["b.txt"]),
]
