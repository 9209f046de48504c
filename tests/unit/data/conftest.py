from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from tests.fixtures.cache_world import World
from tests.fixtures.small_disk import small_disk  # noqa: F401


@pytest.fixture
def paint():
    """Write a real image whose pixels depend on the seed; returns its path."""

    def write(path: Path, width: int = 64, height: int = 64, seed: int = 0, **options) -> Path:
        path.parent.mkdir(parents=True, exist_ok=True)
        coarse = np.random.default_rng(seed).integers(0, 256, (4, 4, 3), dtype=np.uint8)
        image = Image.fromarray(coarse).resize((width, height), Image.Resampling.BICUBIC)
        image.save(path, **options)
        return path

    return write


@pytest.fixture
def captioned(paint):
    """Write an image and its caption."""

    def write(path: Path, caption: str | None = "a thing", **options) -> Path:
        paint(path, **options)
        if caption is not None:
            path.with_suffix(".txt").write_text(caption, encoding="utf-8")
        return path

    return write


@pytest.fixture
def world(tmp_path, captioned, paint) -> World:
    return World(tmp_path, captioned, paint)
