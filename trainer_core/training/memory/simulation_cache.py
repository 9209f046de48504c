"""`KeptSimulations`: what simulated steps gave, for the next run of the same base and settings."""

from __future__ import annotations

import contextlib
import hashlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from torch import nn

from ...config import RunConfig
from ...errors import StorageError
from ...filesystem.storage import write_text
from ...filesystem.text_files import read_object
from ...requirements import installed_versions
from ..step.make_loss import passes_of_step
from .simulated_bytes import Numbers, Phase

_MOST, _LARGEST = 256, 1 << 22
"""Runs of few blocks of which a file keeps what they gave, some ten a step, and its most bytes."""

_NO_MATTER = {
    *("steps", "schedule", "sigma", "recovery", "early_stop"),
    *("checkpoint_every", "checkpoint_minutes", "keep_checkpoints", "keep_every"),
}
"""Settings in ``training`` that change nothing of what a step needs."""


class KeptSimulations:
    """A file of what simulated steps gave; a damaged one is as if there were none.

    Args:
        facts: All that the numbers depend on beside the code.
    """

    def __init__(self, path: Path, *facts: object) -> None:
        code = [each.stat() for each in Path(__file__).parents[1].rglob("*.py")]
        stamp = sum(each.st_size for each in code), max(each.st_mtime_ns for each in code)
        self._path, self._identity = path, repr((facts, stamp, installed_versions()))

    def find(self, run: object, simulate: Callable[[], Numbers]) -> Numbers:
        """What a run of few blocks gave, by what it is called, or what it gives now."""
        key = hashlib.sha256(f"{self._identity} {run!r}".encode()).hexdigest()
        kept = self._read()
        with contextlib.suppress(KeyError, TypeError, ValueError, OverflowError):
            return {
                Phase(what, int(group), int(block)): int(number)
                for what, group, block, number in kept.pop(key)
            }
        numbers = simulate()
        kept[key] = [[*phase, number] for phase, number in numbers.items()]
        with contextlib.suppress(StorageError):
            write_text(self._path, json.dumps(dict(list(kept.items())[-_MOST:])))
        return numbers

    def _read(self) -> dict[str, Any]:
        with contextlib.suppress(StorageError):
            return read_object(self._path, lambda found: StorageError(found, "", ""), _LARGEST)
        return {}


def step_facts(model: nn.Module, config: RunConfig) -> tuple[object, ...]:
    """What a step's memory depends on, of a base without an adapter and of a run file."""
    training = config.training.model_dump(exclude=_NO_MATTER)
    del training["optimizer"]["learning_rate"]
    weights = [(name, tuple(each.shape)) for name, each in model.named_parameters()]
    base = type(model).__qualname__, dict(getattr(model, "config", {})), weights
    return *base, config.adapter.model_dump(), training, passes_of_step(config)
