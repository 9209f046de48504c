"""Whether a part of a clip stands still, and where its scene changes.

Its frames are looked at small and grey while they are decoded for something else. What counts as
a change was chosen by eye on 297 real clips of one to ten seconds at 16 frames a second.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Literal

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from ..types import ClipPart

ACROSS = 32
"""Cells of a small frame along each side."""

STILL = 0.005
"""Mean change between neighbouring frames, of 1, that no cell of a part standing still exceeds. A
still image with noise of 20 of 255 changes by 0.0048, and a mouth of 20 pixels in 480p by 0.011."""

CUT = 0.1
"""Mean change of all cells, of 1, from which a frame begins another scene (the default of FFmpeg's
``scdet``), if no change within two frames of it is more than half as large: those of fast motion
and of a flash are."""

_NEAR = 2


@dataclass(slots=True)
class Motion:
    """What the frames of a part show.

    Attributes:
        part: Which frames of the clip are looked at.
    """

    part: ClipPart
    _before: NDArray[np.float32] | None = None
    _by_cell: NDArray[np.float32] | None = None
    _by_frame: list[float] = field(default_factory=list)

    def look(self, image: Image.Image) -> None:
        """Look at the next frame."""
        small = image.convert("L").resize((ACROSS, ACROSS), Image.Resampling.BOX)
        now = np.asarray(small, dtype=np.float32) / np.float32(255)
        if self._before is not None:
            change = np.abs(now - self._before)
            self._by_frame.append(float(change.mean()))
            self._by_cell = change if self._by_cell is None else self._by_cell + change
        self._before = now

    def found(self) -> Iterator[tuple[Literal["still", "cut"], str]]:
        """What may be a mistake: its kind, and where in the file."""
        part, changes = self.part, np.asarray(self._by_frame)
        if self._by_cell is not None and self._by_cell.max() <= STILL * len(changes):
            end = part.start + part.frames / part.rate
            yield "still", f"from {part.start:.2f} to {end:.2f} s"
        cuts = []
        for number in np.flatnonzero(changes >= CUT).tolist():
            near = *changes[max(0, number - _NEAR) : number], *changes[number + 1 :][:_NEAR]
            if max(near, default=0.0) <= changes[number] / 2:
                cuts.append(f"{part.start + (number + 1) / part.rate:.2f}")
        if cuts:
            yield "cut", f"at {', '.join(cuts)} s"
