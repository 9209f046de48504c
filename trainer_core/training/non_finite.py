"""What a run that met a number that is not finite leaves behind, and how to go on from there.

Noise, samples and noise levels of a step are the same in every attempt. So the state before the
step that broke leads there again, whatever the learning rate is now; an earlier one may not.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from ..errors import InputError
from .checkpoint import checkpoint_folders
from .run_folder import read_record

RECORD = "non_finite"
"""Where ``run.json`` keeps the step that broke, and the precision that it broke in."""


def broken_step(step: int, precision: str) -> dict[str, Any]:
    """The step that broke, as ``run.json`` keeps it."""
    return {"step": step, "precision": precision}


def leads_nowhere(checkpoint: Path, precision: str | None) -> bool:
    """Whether a checkpoint is known to lead to a number that is not finite in its next step.

    Args:
        checkpoint: Its folder, in a run's version.
        precision: What the run would compute in; None for any.
    """
    try:
        broken = read_record(checkpoint.parent.parent)[RECORD]
        step, found = int(broken["step"]), str(broken["precision"])
    except (InputError, ValueError, LookupError, TypeError, OverflowError):
        return False
    return int(checkpoint.name) == step - 1 and precision in {None, found}


def way_on(checkpoints: Path, step: int, begun: int, learning_rate: float, precision: str) -> str:
    """Say how a run goes on that broke.

    Args:
        checkpoints: The folder of its checkpoints, in the run's version.
        step: The step that broke.
        begun: The step that this attempt went on from; 0 when it began anew.
        learning_rate: The highest of the run.
        precision: What it computed in.

    Returns:
        What to do, for the command line and for ComfyUI.
    """
    saved = [int(path.name) for path in checkpoint_folders(checkpoints)]
    fine = [each for each in saved if each < step - 1]
    lower = f"training.optimizer.learning_rate={learning_rate / 10:g}"
    if newer := [each for each in fine if each > begun or not begun]:
        text = (
            f"Go on from the checkpoint of step {newer[-1]} with a lower learning rate: start "
            f"again with resume=latest {lower} (in ComfyUI: lower learning_rate and run the graph "
            "again)."
        )
    elif earlier := [each for each in fine if each < begun]:
        place = f"{checkpoints.parent.parent.name}/{checkpoints.parent.name}/{earlier[-1]:06d}"
        text = (
            f"The run broke soon after step {begun}, which it went on from. Go on from step "
            f"{earlier[-1]} with a lower learning rate: start again with resume={earlier[-1]} "
            f"{lower} (in ComfyUI: lower learning_rate, choose {place} as resume_from and run the "
            "graph again)."
        )
    else:
        text = (
            f"Start anew with a lower learning rate: resume=none {lower} (in ComfyUI: lower "
            "learning_rate, switch resume off and run the graph again)."
        )
    if precision != "fp32" and step - 1 in saved:
        text += (
            f" The state after step {step - 1} is saved as well: resume=latest "
            f"training.precision=fp32 tries step {step} from there (in ComfyUI: precision of Load "
            "Training Base)."
        )
    return text
