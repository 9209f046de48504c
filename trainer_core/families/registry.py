"""The families there are: one line each."""

from __future__ import annotations

import importlib
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

from ..errors import BaseModelError
from ..printable import nearest
from .graph_model_denoiser import GRAPH_MODEL, only_the_host

if TYPE_CHECKING:
    from .family import Family

PACKAGES: dict[str, str] = {
    "qwen_image": ".qwen_image",
    "flux": ".flux",
    "flux2": ".flux2",
    "z_image": ".z_image",
    "chroma": ".chroma",
    "krea2": ".krea2",
    "qwen_image_21": ".qwen_image_21",
    "wan": ".wan",
}
"""A family's name, as in the run file's ``family``, to its package.

A package's module ``spec`` has the `Family` as ``FAMILY``, its module ``templates`` the values of
its run files for each purpose as ``TEMPLATES`` (`run_files`), its file ``presets.yaml`` its own
figures of presets (`presets`).
"""


class _Families(Mapping[str, "Family"]):
    """A family is imported when it is asked for: that imports torch, and names are asked for more.

    The names are those of `PACKAGES`, in their order.
    """

    def __getitem__(self, name: str) -> Family:
        return importlib.import_module(f"{PACKAGES[name]}.spec", __package__).FAMILY

    def __contains__(self, name: object) -> bool:
        return name in PACKAGES

    def __iter__(self) -> Iterator[str]:
        return iter(PACKAGES)

    def __len__(self) -> int:
        return len(PACKAGES)


FAMILIES: Mapping[str, Family] = _Families()


def get_family(name: str) -> Family:
    """The family that a run file names so; `BaseModelError` where there is none."""
    if name in FAMILIES:
        return FAMILIES[name]
    if name == GRAPH_MODEL:
        raise only_the_host("the base")
    near = nearest(name, FAMILIES, cutoff=0.4)
    remedy = f"Did you mean family: {near}?" if near else "Choose one of these as family."
    raise BaseModelError(f"family: {name!r}", f"one of {', '.join(FAMILIES)}", remedy)


def embedded_family() -> Family:
    """The family of the tiny base that ships with the trainer."""
    return next(family for family in FAMILIES.values() if family.embedded is not None)
