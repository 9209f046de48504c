"""Run files of the demonstration, as values."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from ..config import RunConfig
from ..families.registry import embedded_family
from ..families.run_files import template_config
from ..inference.sampler import SampleSettings
from .vocabulary import CONCEPT_COLORS, CONCEPT_SHAPE, OWN_SHAPE

Task = Literal["generate", "edit", "own"]
RANKS_AND_RATES = {"lora": (16, 3e-3), "loha": (16, 3e-3)}
"""Rank and learning rate of the kinds that the tiny preset is not made for."""
TASKS: tuple[Task, ...] = ("generate", "edit", "own")


def dataset_folder(task: Task) -> Path:
    """Folder of the bundled dataset of a task."""
    return Path(__file__).parent.parent / "assets" / f"demo-{task}"


def demo_config(kind: str, task: Task, output: Path) -> RunConfig:
    """Build the run file of the demonstration: the tiny preset, on the bundled images.

    Args:
        kind: ``lora``, ``loha`` or ``lokr``.
        task: ``generate`` teaches a shape and ``edit`` an edit, with ordinary images beside
            them; ``own`` teaches a shape from twelve images alone.
        output: Folder of everything the demonstration writes.

    Returns:
        The run file.
    """
    template = template_config(embedded_family().name, "tiny_edit" if task == "edit" else "tiny")
    values = template.model_dump(mode="json")
    values["dataset"]["path"] = str(dataset_folder(task))
    # The same run file draws the images that are then edited.
    values["base"]["variant"] = "auto"
    values["cache"]["dir"] = str(output / "cache")
    if kind != "lokr":
        rank, rate = RANKS_AND_RATES[kind]
        values["adapter"] |= {"kind": kind, "rank": rank, "factor": -1}
        values["training"]["optimizer"]["learning_rate"] = rate
    values["training"]["precision"] = "fp32"
    values["memory"]["device"] = "cpu"
    values["output"] |= {"dir": str(output / "runs"), "name": f"demo-{task}-{kind}"}
    if task != "edit":
        shape = OWN_SHAPE if task == "own" else CONCEPT_SHAPE
        prompts = [f"a {c} {shape} on a green background" for c in CONCEPT_COLORS[:2]]
        values["preview"] |= {"every": 100, "prompts": prompts}
    return RunConfig.model_validate(values)


def draw_settings(config: RunConfig) -> SampleSettings:
    """How the demonstration draws: as its previews."""
    preview = config.preview
    return SampleSettings(preview.width, preview.height, preview.steps, preview.guidance)
