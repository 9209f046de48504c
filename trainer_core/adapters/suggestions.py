"""Words for messages about layers that were not found."""

from __future__ import annotations

import difflib
import re
from collections import Counter
from collections.abc import Iterable

from torch import nn

_SHOWN = 5


def nearest(wanted: str, names: Iterable[str]) -> str:
    """Name what comes closest, one name for each group that differs only in its numbers.

    Args:
        wanted: What was asked for; regular-expression signs are ignored. Empty: the first names.
        names: What there is.

    Returns:
        Up to five names, or "none" when there are no names at all.
    """
    groups: dict[str, str] = {}
    for name in names:
        groups.setdefault(re.sub(r"\d+", "0", name), name)
    plain = re.sub(r"\d+", "0", re.sub(r"\\d[+*]?", "0", wanted))
    plain = re.sub(r"[^A-Za-z0-9_.]", "", plain.replace(".*", ""))
    found = difflib.get_close_matches(plain, groups, n=_SHOWN, cutoff=0.3) if plain else []
    shown = [groups[key] for key in found] or list(groups.values())[:_SHOWN]
    return ", ".join(shown) or "none"


def class_counts(module: nn.Module) -> str:
    """Count the classes of a module's parts, the most frequent first."""
    counts = Counter(type(part).__name__ for path, part in module.named_modules() if path)
    return ", ".join(f"{count} {name}" for name, count in counts.most_common(12)) or "no parts"
