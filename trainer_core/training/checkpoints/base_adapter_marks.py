"""Which adapters are part of a run's base: what a checkpoint and a file's header say of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ...adapter_files.read.read_adapter import adapter_files
from ...config import BaseSection
from ...data.file_memory import hash_file
from ...errors import BaseModelError
from ...filesystem.text_files import require_regular

Mark = Mapping[str, Any]
"""``name``, ``sha256``, ``strength`` and ``when`` of an adapter."""


def base_adapter_marks(settings: BaseSection) -> list[Mark]:
    """Name the adapters that are part of a base by their content.

    Returns:
        One for each that has a strength, in order; their paths do not count.

    Raises:
        BaseModelError: When a file cannot be read.
    """
    marks: list[Mark] = []
    for number, each in enumerate(settings.adapters):
        if not each.strength:
            continue
        path = Path(each.path)
        try:
            content = "+".join(map(_hashed, adapter_files(path)))
        except (OSError, ValueError) as error:
            reason = (error.strerror if isinstance(error, OSError) else None) or error
            raise BaseModelError(
                f"base.adapters.{number}: {path} cannot be read ({reason})",
                "an adapter file, or a folder that PEFT saved",
                "Correct the path, or give read access.",
            ) from error
        mark = {"name": path.name, "sha256": content}
        marks.append({**mark, "strength": each.strength, "when": each.when})
    return marks


def _hashed(file: Path) -> str:
    require_regular(file)  # what is not a file may never end
    return hash_file(file)


def are_same(before: Sequence[Mark] | None, after: Sequence[Mark] | None) -> bool:
    """Whether two runs had the same adapters; those of runs that knew of none are none."""
    return [_content(each) for each in before or ()] == [_content(each) for each in after or ()]


def in_words(marks: Sequence[Mark] | None) -> str:
    """Adapters as a person knows them, such as ``turbo.safetensors (1, training)``."""
    listed = (f"{each['name']} ({each['strength']:g}, {each['when']})" for each in marks or ())
    return ", ".join(listed) or "none"


def _content(mark: Mark) -> dict[str, Any]:
    return {key: value for key, value in mark.items() if key != "name"}
