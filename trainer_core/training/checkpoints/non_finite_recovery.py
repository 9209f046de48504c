"""Which state is restored, at which rate, after several steps in a row that are not finite.

All of it follows from the seed and what a checkpoint holds, so that a run that is killed anywhere
ends with the same bits.
"""

from __future__ import annotations

from pathlib import Path

from ...config import RecoverySection
from .checkpoint import checkpoint_folders


class RestoreSignal(Exception):  # noqa: N818 - it unwinds a step, and is no error
    """Tells `Trainer.train` to restore an older state and go on with a lower learning rate.

    Attributes:
        step: Whose numbers are not finite.
        target: Steps that the state has made.
    """

    def __init__(self, step: int, target: int) -> None:
        super().__init__(step, target)
        self.step, self.target = step, target


def checkpoint_to_restore(checkpoints: Path, first: int) -> int | None:
    """The step of the newest checkpoint that does not lead straight to a step that breaks.

    Args:
        first: The step that breaks. The state right before it would meet the same numbers again.

    Returns:
        Steps made; None where there is none.
    """
    saved = [int(path.name) for path in checkpoint_folders(checkpoints)]
    return max((each for each in saved if each < first - 1), default=None)


def rate_share(settings: RecoverySection, restores: int) -> float:
    """Of the learning rate: what is left of it after so many restored states."""
    return settings.rate_factor**restores


def restore_note(settings: RecoverySection, step: int, target: int, restores: int) -> str:
    """What a run says that restores a state, in one line."""
    share = rate_share(settings, restores)
    place = f"the checkpoint of step {target}" if target else "its start"
    return (
        f"Step {step} is not finite. The run goes back to {place}, and on with {share:g} of "
        f"the learning rate (return {restores} of {settings.returns})."
    )
