"""Settings of masks: which part of an image counts how much in the loss."""

from __future__ import annotations

from typing import Literal

from .section import Section, setting

MaskOrigin = Literal["auto", "files", "alpha", "none"]


class MaskSection(Section):
    """Where masks come from, and what they weigh."""

    source: MaskOrigin = setting(
        "auto",
        "Leave it on auto. 'auto': mask files where there are some, as NAME_mask.png beside the "
        "image or in a folder 'masks'; white is trained. 'files': every image needs one. 'alpha': "
        "an image's own transparency is its mask. 'none': masks are left unread.",
        advanced=True,
    )
    invert: bool = setting(
        False,
        "Leave it off unless your masks are white where nothing should be learned.",
        advanced=True,
    )
    foreground: float = setting(
        1.0,
        "Leave it at 1. Weight of the loss where the mask is white.",
        advanced=True,
        ge=0.0,
        le=100.0,
    )
    background: float = setting(
        0.1,
        "Raise it towards 1 when what surrounds your subject falls apart; at 0 it is not trained "
        "at all. Weight of the loss where the mask is black.",
        advanced=True,
        ge=0.0,
        le=100.0,
    )
    normalize: bool = setting(
        True,
        "Leave it on: a small subject then counts as much as a large one. Divides the loss of an "
        "image by the mean weight of its mask.",
        advanced=True,
    )
