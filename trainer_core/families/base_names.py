"""What the name of a base says of it: distilled to few steps, or one of two models.

A distilled base makes an image in a few steps, because it was trained to jump. Training it with the
loss of flow matching undoes that bit by bit, and its samples blur. `Family.distilled` tells; what
is done with it is `bases.distilled`'s. Of models that are two, one samples high noise, with which a
generation begins, one low noise.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ..weights.base_location import BaseLocation

_DISTILLED = re.compile(
    r"(?<![a-z])(schnell|lightning|turbo|hyper(?![-_ ]*(real|detail))|lightx2v|nunchaku|dmd|lcm"
    r"|(?<!\d)[48]-?steps?)(?![a-z])"
    r"|distill(ed)?"
)
_TURNED_ROUND = re.compile(
    r"(de|un|non|not)[-_ ]?distill|(?<![a-z])(de|un|non|not)[-_ ]?turbo(?![a-z])"
)
_IN_GUIDANCE = re.compile(r"(cfg|guidance)[-_ ]?distill(ed)?")
"""As FLUX.1 dev is, and HunyuanVideo's usual file: it keeps its number of steps."""


def distilled_by_name(location: BaseLocation) -> str:
    """`Family.distilled` of a family whose distilled bases differ from the others by name alone."""
    word = distilled_word(base_name(location))
    if not word:
        return ""
    return (
        f"Its name or title says {word!r}: name the model that it was made from as "
        "base.path; most adapters work on both. If the name is wrong, rename it."
    )


def distilled_word(name: str) -> str:
    """What says in a name, in small letters, that a model was distilled; empty for any other."""
    found = _DISTILLED.search(_IN_GUIDANCE.sub(" ", _TURNED_ROUND.sub(" ", name)))
    return found.group() if found else ""


def says_not_distilled(location: BaseLocation) -> bool:
    """Whether a base's name says that a distillation was undone, as de-distilled or De-Turbo."""
    return is_turned_round(base_name(location))


def is_turned_round(name: str) -> bool:
    """Whether a name in small letters says that a distillation was undone."""
    return _TURNED_ROUND.search(name) is not None


def base_name(location: BaseLocation) -> str:
    """What a base is called, in small letters: of a file, its title too."""
    if location.embedded:
        return ""
    if location.file is not None:
        from ..weights.header import open_weights

        return open_weights(location.file).hints
    folder = location.folder
    # The hub's cache calls a folder by its commit, two folders below the model's name.
    named = folder.parents[1] if folder.parent.name == "snapshots" else folder
    return named.name.lower()


HIGH, LOW = "high", "low"
_NAME = re.compile(r"(high|low)[ _.-]?noise|(?:a14b|2[._]?2.*14b).*?(?<![a-z])(high|low)(?![a-z])")
_ONE_OF_TWO = re.compile(r"(?<![a-z0-9])a14b(?![a-z0-9])")


def named_role(title: str) -> str:
    """`HIGH` or `LOW` where the name of a file says so; empty where it does not, or says both."""
    says = {one or other for one, other in _NAME.findall(title.casefold())}
    return says.pop() if len(says) == 1 else ""


def names_one_of_two(title: str) -> bool:
    """Whether the name of a file says that it is one of two, whichever."""
    return _ONE_OF_TWO.search(title.casefold()) is not None
