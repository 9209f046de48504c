"""What ``run.json`` says of a run's checkpoints: the best one, those that gave way, and returns."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ...config import RecoverySection
from ...errors import StorageError
from ...types import BestCheckpoint
from .best_loss import BestLoss
from .checkpoint import ADAPTER_FILE, checkpoint_folders, is_checkpoint
from .find_checkpoint import BEST, best_step
from .non_finite_recovery import rate_share
from .run_folder import RunFolder

RETURNS = "returns"
"""Where ``run.json`` lists from where to where the run has gone back, and with which share of the
learning rate it went on."""

DROPPED = "dropped_checkpoints"
"""Where ``run.json`` lists the steps whose checkpoints gave way to newer ones, the last `MOST`."""

MOST = 100
"""A run of a million steps drops thousands of checkpoints, and each rewrites ``run.json``."""


class CheckpointRecord:
    """Keeps what ``run.json`` says of a run's checkpoints.

    Args:
        best: The lowest loss on held-out images, as the run has it at each moment.
        measured: Steps of the run to their losses on held-out images, as far as it has come.
    """

    def __init__(self, folder: RunFolder, best: BestLoss, measured: Mapping[int, float]) -> None:
        self._folder, self._best, self._measured = folder, best, measured

    def go_on(self, done: int) -> None:
        """Take back what was said of a course that is given up, or died before it said it.

        Args:
            done: Steps made. The checkpoints of later ones are gone.

        Raises:
            StorageError: When the record cannot be written.
        """
        self.mark_best()
        dropped = self._dropped()
        kept = [step for step in dropped if step <= done]
        if kept != dropped:
            self._folder.update_record(**{DROPPED: kept})

    def mark_best(self) -> None:
        """Name the best checkpoint that is on the disk, or none.

        Raises:
            StorageError: When the record cannot be written.
        """
        found = self._lowest()
        if self._folder.read_record().get(BEST) != found:
            self._folder.update_record(**{BEST: found})

    def best(self) -> BestCheckpoint | None:
        """The checkpoint with the lowest loss, if one was measured and is there."""
        found = self._lowest() if self._best.known else None
        if found is None:
            return None
        adapter = self._place(found["step"]) / ADAPTER_FILE
        there = adapter.is_file()
        return BestCheckpoint(found["step"], found["loss"], adapter) if there else None

    def spared(self) -> set[int]:
        """The steps of checkpoints that give way to none."""
        steps = {self._best.step} if self._best.known else set[int]()
        marked = best_step(self._folder.path)
        return steps if marked is None else steps | {marked}

    def saved(self, step: int, dropped: Sequence[int] = ()) -> None:
        """Say that a checkpoint is written, and which gave way to it.

        Raises:
            StorageError: When the record cannot be written.
        """
        record: dict[str, Any] = {"step": step}
        if dropped:
            record[DROPPED] = [*self._dropped(), *dropped][-MOST:]
        self._folder.update_record(**record)

    def record_restore(self, step: int, to: int, restores: int, settings: RecoverySection) -> None:
        """Say that the run goes on from an older state, with a lower rate.

        Args:
            step: Which is not finite.
            to: Steps that the state has made.
            restores: How often a state was restored, with this time.
        """
        entry = {"step": step, "to": to, "rate": rate_share(settings, restores)}
        known = self._folder.read_record().get(RETURNS)
        # A run that is killed and resumed finds its way back once more.
        kept = [each for each in known if each != entry] if isinstance(known, list) else []
        with contextlib.suppress(StorageError):
            self._folder.update_record(**{RETURNS: [*kept, entry]})

    def _lowest(self) -> dict[str, Any] | None:
        """Step and loss of the best checkpoint that is on the disk."""
        best = self._best
        if best.known and is_checkpoint(self._place(best.step)):
            return best.record()
        # The disk did not take it, or it gave way to a better one that a return has given up.
        rows = self._marked()
        if best.known:
            saved = [int(each.name) for each in checkpoint_folders(self._folder.checkpoints)]
            # Those before it may have been measured in another way.
            later = [step for step in saved if step > best.step and step in self._measured]
            rows += [{"step": step, "loss": self._measured[step]} for step in later]
            # A mark below the lowest loss was measured in another way.
            rows = [each for each in rows if each["loss"] >= best.loss]
        return min(rows, key=lambda each: each["loss"], default=None)

    def _marked(self) -> list[dict[str, Any]]:
        """Step and loss of the checkpoint that is named, if that is there."""
        if best_step(self._folder.path) is None:
            return []
        marked = self._folder.read_record()[BEST]
        return [marked] if isinstance(marked.get("loss"), float) else []

    def _dropped(self) -> list[int]:
        found = self._folder.read_record().get(DROPPED)
        return [each for each in found if isinstance(each, int)] if isinstance(found, list) else []

    def _place(self, step: int) -> Path:
        return self._folder.checkpoints / f"{step:06d}"
