"""`KeptSimulations`: what simulated steps gave, for the next run of the same base and settings."""

from __future__ import annotations

import contextlib
import hashlib
import json
import zlib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from torch import nn

from ..config import RunConfig
from ..errors import StorageError
from ..filesystem.storage import write_text
from ..filesystem.text_files import read_object
from ..requirements import installed_versions
from .objective import passes_of_step
from .step_marks import Phase

Numbers = dict[Phase | str, int]
"""Peaks of phases, in bytes beside the base; and ``adapter`` (bytes) and ``flops``."""

_MOST, _LARGEST = 16, 1 << 22
"""Steps of which a file keeps what they gave, and its most bytes."""

_NO_MATTER = {
    *("steps", "schedule", "sigma", "recovery", "early_stop"),
    *("checkpoint_every", "checkpoint_minutes", "keep_checkpoints", "keep_every"),
}
"""Of a run file's ``training``."""


class KeptSimulations:
    """A file of what simulated steps gave; a damaged one is as if there were none.

    Args:
        path: The file, in a folder that is there.
        facts: All that the numbers depend on, beside the code.
    """

    def __init__(self, path: Path, *facts: object) -> None:
        self._path = path
        code = [each.stat() for each in Path(__file__).parents[1].rglob("*.py")]
        stamp = len(code), sum(e.st_size for e in code), max(e.st_mtime_ns for e in code)
        told = repr((facts, stamp, installed_versions()))
        self._key = hashlib.sha256(told.encode()).hexdigest()

    def find(self, run: object, simulate: Callable[[], Numbers]) -> Numbers:
        """What a run of few blocks gave, or gives now.

        Args:
            run: What it is called.
            simulate: Makes it.
        """
        steps = self._read()
        try:
            rows, proof = steps[self._key][repr(run)]
            if proof == _proof(rows):
                return {Phase(what, *at) if at else what: n for what, at, n in rows}
        except (KeyError, TypeError, ValueError):
            pass
        numbers = simulate()
        rows = [
            [each.what, list(each[1:]), n] if isinstance(each, Phase) else [each, [], n]
            for each, n in numbers.items()
        ]
        known = steps.pop(self._key, {})
        steps[self._key] = {
            **(known if isinstance(known, dict) else {}),
            repr(run): [rows, _proof(rows)],
        }
        kept = dict(list(steps.items())[-_MOST:])
        with contextlib.suppress(StorageError):
            write_text(self._path, json.dumps(kept, separators=(",", ":")))
        return numbers

    def _read(self) -> dict[str, Any]:
        def refuse(found: str) -> StorageError:
            return StorageError(found, "simulated steps", "They are simulated again.")

        with contextlib.suppress(StorageError):
            return read_object(self._path, refuse, _LARGEST)
        return {}


def _proof(rows: object) -> int:
    return zlib.crc32(json.dumps(rows).encode())


def step_facts(model: nn.Module, config: RunConfig) -> Mapping[str, object]:
    """What a step's memory depends on, of a base without an adapter and of a run file."""
    training = config.training.model_dump(exclude=_NO_MATTER)
    del training["optimizer"]["learning_rate"]
    return {
        "base": (type(model).__qualname__, dict(getattr(model, "config", {}))),
        "weights": [(name, tuple(each.shape)) for name, each in model.named_parameters()],
        "adapter": config.adapter.model_dump(),
        "training": training,
        "passes": passes_of_step(config),
    }
