"""Which control picture belongs to which training picture, by name.

Beside a picture ``name.png`` lie ``name_control.png`` or ``name_control_1.png``,
``name_control_2.png`` and so on; in a folder of controls also ``name.png`` and ``name_0.png``,
``name_1.png``. Numbers begin at 0 or 1 and have no gaps.
"""

from __future__ import annotations

import re
from collections.abc import Collection
from dataclasses import dataclass

_MARKED = re.compile(r"^(?P<stem>.+)_control(?:_(?P<number>\d{1,2}))?$", re.DOTALL)
_NUMBERED = re.compile(r"^(?P<stem>.+)_(?P<number>\d{1,2})$", re.DOTALL)


@dataclass(frozen=True, slots=True)
class ControlName:
    """What the name of a control picture says.

    Attributes:
        target: Stem of the training picture, with its folder.
        number: Position among the target's controls as written; None where none is written.
    """

    target: str
    number: int | None


def marked_control(stem: str) -> ControlName | None:
    """Read ``name_control`` and ``name_control_N``; None for any other stem."""
    return _read(_MARKED, stem)


def control_in_folder(stem: str, targets: Collection[str]) -> ControlName | None:
    """Find the target of a picture in the folder of controls.

    A target of exactly the same name wins over the numbered spellings, so that ``a_1.png`` is the
    control of a training picture ``a_1``, and of ``a`` only where there is no ``a_1``.

    Args:
        stem: Path of the control within its folder, without extension.
        targets: The same of all training pictures.

    Returns:
        Target and position, or None when no training picture fits.
    """
    if stem in targets:
        return ControlName(stem, None)
    for pattern in (_MARKED, _NUMBERED):
        name = _read(pattern, stem)
        if name is not None and name.target in targets:
            return name
    return None


def numbering_problem(numbers: Collection[int | None]) -> str | None:
    """Say what is wrong with the positions of one target's controls.

    Args:
        numbers: One per control; None counts as the place before the first number.

    Returns:
        Words for a message, or None when the positions are in order.
    """
    written = sorted(number for number in numbers if number is not None)
    if len(set(numbers)) < len(numbers):
        return "two control pictures claim the same place"
    if not written:
        return None
    if written[0] > 1:
        return f"control pictures begin at number {written[0]}"
    if written[-1] - written[0] + 1 != len(written):
        missing = sorted(set(range(written[0], written[-1])) - set(written))
        return f"control picture number {missing[0]} is missing"
    return None


def _read(pattern: re.Pattern[str], stem: str) -> ControlName | None:
    match = pattern.match(stem)
    if match is None or match["stem"].endswith("/"):
        return None
    return ControlName(match["stem"], int(match["number"]) if match["number"] else None)
