"""One folder per model architecture, behind one contract (`Family`)."""

from __future__ import annotations

import difflib

from ..errors import BaseModelError
from .detection import detect_base
from .family import Family, guided_velocity, needs_one_pass
from .flux import FLUX
from .location import BaseLocation, locate_base
from .qwen_image import QWEN_IMAGE

FAMILIES: dict[str, Family] = {family.name: family for family in (QWEN_IMAGE, FLUX)}

__all__ = [
    "FAMILIES",
    "BaseLocation",
    "Family",
    "detect_base",
    "get_family",
    "guided_velocity",
    "locate_base",
    "needs_one_pass",
]


def get_family(name: str) -> Family:
    """Look up a family.

    Args:
        name: As in the run file's ``family``.

    Returns:
        The family.

    Raises:
        BaseModelError: When there is none of that name.
    """
    if name in FAMILIES:
        return FAMILIES[name]
    near = difflib.get_close_matches(name, FAMILIES, n=1, cutoff=0.4)
    remedy = f"Did you mean family: {near[0]}?" if near else "Choose one of these as family."
    raise BaseModelError(f"family: {name!r}", f"one of {', '.join(FAMILIES)}", remedy)
