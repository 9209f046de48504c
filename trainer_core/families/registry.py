"""The families there are: one line each."""

from __future__ import annotations

import difflib

from ..errors import BaseModelError
from .family import Family
from .flux.spec import FLUX
from .qwen_image.spec import QWEN_IMAGE

FAMILIES: dict[str, Family] = {family.name: family for family in (QWEN_IMAGE, FLUX)}


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
