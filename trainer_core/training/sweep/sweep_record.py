"""The results of a sweep's trials, and the record of them that lies beside their runs."""

from __future__ import annotations

import math
import shutil
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from ...errors import InputError
from ...filesystem.storage import move, storage_error, write_json, write_text
from ...filesystem.temporary import temporary_beside
from ...filesystem.text_files import read_object
from ..checkpoints.run_folder import version_number
from .trials import Values, in_words

RECORD, TABLE = "sweep.json", "sweep.txt"
ENDS = frozenset({"done", "stopped"})
"""How a trial with an adapter ends: at its end, or by `MedianRule` or a person before it."""


@dataclass(frozen=True, slots=True)
class TrialResult:
    """What became of a trial.

    Attributes:
        name: The ``output.name`` of its run.
        settings: What makes it differ.
        identity: Names run file, base and images, so that another sweep's result is not taken.
        status: ``waiting``, ``running``, ``cancelled``, ``failed``, or one of `ENDS`.
        loss: The lowest one on held-out images; None where there is none.
        best_step: Steps made when it was measured.
        steps: Steps of a whole run.
        seconds: Of its steps.
        run: The folder of its version, relative to ``output.dir``.
    """

    name: str
    settings: Values
    identity: str
    status: str = "waiting"
    loss: float | None = None
    best_step: int | None = None
    step: int = 0
    steps: int | None = None
    seconds: float = 0.0
    run: str | None = None
    reason: str = ""


@dataclass(slots=True)
class SweepResult:
    """A sweep as far as it has come.

    Attributes:
        folder: Where its record and its adapter are.
        trials: In the order of the sweep file.
        adapter: The best trial's adapter; None as long as none has ended.
        best: The name of its trial.
        cancelled: Whether it was cancelled before its last trial.
    """

    folder: Path
    trials: list[TrialResult] = field(default_factory=list)
    adapter: Path | None = None
    best: str | None = None
    cancelled: bool = False

    def ranked(self) -> list[TrialResult]:
        """All trials: of those that have ended the lowest loss first, then the others."""

        def place(each: TrialResult) -> float:
            ended = each.status in ENDS
            return each.loss if ended and each.loss is not None else float("inf")

        return sorted(self.trials, key=place)

    def record(self) -> dict[str, Any]:
        """What ``sweep.json`` says."""
        return {
            "ranked_by": "lowest loss on held-out images",
            "best": self.best,
            "adapter": self.adapter.name if self.adapter else None,
            "trials": [{**asdict(each), "settings": dict(each.settings)} for each in self.ranked()],
        }


def sweep_table(result: SweepResult) -> str:
    """The trials, the best first, as text."""
    rows = [("", "settings", "held-out loss", "at step", "steps", "seconds", "status")]
    rows += [
        (
            "*" if each.name == result.best else "",
            in_words(each.settings),
            "-" if each.loss is None else f"{each.loss:.5g}",
            "-" if each.best_step is None else str(each.best_step),
            f"{each.step}/{each.steps}" if each.steps else "-",
            f"{each.seconds:.1f}",
            f"{each.status}: {each.reason}" if each.reason else each.status,
        )
        for each in result.ranked()
    ]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = [
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in rows
    ]
    if result.adapter:
        lines.append(f"best: {result.best}, copied to {result.adapter}")
    return "\n".join(lines)


def write_record(result: SweepResult) -> None:
    """Write the record and the table of a sweep."""
    write_json(result.folder / RECORD, result.record())
    write_text(result.folder / TABLE, sweep_table(result) + "\n")


def read_results(folder: Path) -> tuple[Any, dict[str, TrialResult]]:
    """What an earlier start has written down: the best trial's name, and all by their names.

    Raises:
        InputError: When it is not a record of a sweep.
    """
    path = folder / RECORD
    if not path.exists():
        return None, {}

    def refuse(reason: str) -> InputError:
        return InputError(
            f"{path} cannot be read ({reason})",
            "the record that a sweep keeps",
            "Remove it: trials that have ended are then trained no further, but looked at again.",
        )

    found = read_object(path, refuse)
    try:
        results = [TrialResult(**each) for each in found["trials"]]
    except (TypeError, LookupError) as error:
        raise refuse(str(error)) from error
    for each in results:
        if wrong := [key for key, fits in _FITS.items() if not fits(getattr(each, key))]:
            raise refuse(f"{wrong[0]} of a trial is {str(getattr(each, wrong[0]))[:80]!r}")
        if each.run is not None:
            name, _, version = each.run.rpartition("/")
            if name != each.name or version_number(Path(version)) < 0:
                raise refuse(f"run of the trial {each.name[:80]} is {each.run[:80]!r}")
    return found.get("best"), {each.name: each for each in results}


def _is_count(value: Any) -> bool:
    return type(value) is int and value >= 0


def _is_number(value: Any) -> bool:
    return type(value) in {int, float} and abs(value) < math.inf


def _is_text(value: Any) -> bool:
    return isinstance(value, str)


_FITS: Mapping[str, Callable[[Any], bool]] = {
    "name": _is_text,
    "settings": lambda value: isinstance(value, dict),
    "identity": _is_text,
    "status": lambda value: value in ("waiting", "running", "cancelled", "failed", *ENDS),
    "loss": lambda value: value is None or _is_number(value),
    "best_step": lambda value: value is None or _is_count(value),
    "step": _is_count,
    "steps": lambda value: value is None or _is_count(value),
    "seconds": _is_number,
    "run": lambda value: value is None or _is_text(value),
    "reason": _is_text,
}
"""What a value of a `TrialResult` may be; its file may come from anybody."""


def sweep_adapter(folder: Path) -> Path:
    """Where the adapter of the best trial is copied."""
    return folder / f"{folder.name.removesuffix('_sweep')}.safetensors"


def keep_earlier_results(folder: Path) -> None:
    """Copy the record and the adapter of trials with other settings out of the way."""
    number = 0
    while (target := folder / f"earlier_{number}").exists():
        number += 1
    try:
        with temporary_beside(target, ending="") as draft:
            draft.mkdir()
            for file in (folder / RECORD, folder / TABLE, sweep_adapter(folder)):
                if file.is_file():
                    shutil.copyfile(file, draft / file.name)
            move(draft, target)
    except OSError as error:
        raise storage_error(target, error) from error
