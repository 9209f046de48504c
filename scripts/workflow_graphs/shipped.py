"""All workflows that the pack ships."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

from .bases import FULL_SIZE
from .comparing import convert_and_compare
from .embedded import embedded_edit, embedded_folders, embedded_generate
from .graph import Workflow
from .quick import first_adapter, quick
from .video import VIDEO, quick_video

QUICK = 11
"""The first number of the workflows for full-size bases; a new base renames no other's."""

_VIDEO = QUICK + len(FULL_SIZE)

WORKFLOWS: Sequence[Callable[[], Workflow]] = (
    first_adapter,
    *(partial(quick, number, base) for number, base in enumerate(FULL_SIZE, QUICK)),
    *(partial(quick_video, number, each) for number, each in enumerate(VIDEO, _VIDEO)),
    convert_and_compare,
    embedded_generate,
    embedded_edit,
    embedded_folders,
)
"""What makes each of them, in the order of a learner: their names begin with their number."""
