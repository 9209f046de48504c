"""Run files of the demonstration, as values."""

from __future__ import annotations

from importlib.resources import files
from pathlib import Path
from typing import Any, Literal

from ..config import RunConfig
from .vocabulary import CONCEPT_COLORS, FRAME_EDIT, PICTURE_SIZE

Task = Literal["generate", "edit"]
TASKS: tuple[Task, ...] = ("generate", "edit")

GUIDANCE = 3.0
STEPS = 20


def dataset_folder(task: Task) -> Path:
    """Folder of the bundled dataset of a task."""
    return Path(str(files("trainer_core") / "assets" / f"demo-{task}"))


def demo_config(kind: str, task: Task, output: Path) -> RunConfig:
    """Build the run file of the demonstration.

    Args:
        kind: ``lora``, ``loha`` or ``lokr``.
        task: ``generate`` teaches a shape, ``edit`` teaches an edit.
        output: Folder of everything the demonstration writes.

    Returns:
        The run file.
    """
    return RunConfig.model_validate(
        {
            "family": "qwen_image",
            "base": {"path": "embedded"},
            "dataset": {"path": str(dataset_folder(task)), "resolution": PICTURE_SIZE},
            "cache": {"dir": str(output / "cache")},
            "adapter": _adapter(kind),
            "training": {
                "steps": 300,
                "batch_size": 16,
                "precision": "fp32",
                "checkpoint_every": 100,
                "optimizer": {"learning_rate": 2e-3},
                "schedule": {"name": "cosine", "warmup_steps": 20},
            },
            "preview": _preview(task),
            "memory": {"device": "cpu", "gradient_checkpointing": False},
            "output": {"dir": str(output / "runs"), "name": f"demo-{task}-{kind}"},
        }
    )


def _adapter(kind: str) -> dict[str, Any]:
    return {"kind": kind, "rank": 16, "targets": "all_linear"}


def _preview(task: Task) -> dict[str, Any]:
    if task == "edit":
        return {"every": 0}
    prompts = [f"a {color} star on a green background" for color in CONCEPT_COLORS[:2]]
    return {
        "every": 100,
        "prompts": prompts,
        "width": PICTURE_SIZE,
        "height": PICTURE_SIZE,
        "steps": STEPS,
        "guidance": GUIDANCE,
    }


__all__ = ["FRAME_EDIT", "GUIDANCE", "STEPS", "TASKS", "Task", "dataset_folder", "demo_config"]
