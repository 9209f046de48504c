"""Figures that the notes of workflows say, from where they are decided."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any

from trainer_core.families.presets import plan_preset
from trainer_core.families.registry import embedded_family, get_family

ASSETS = Path(__file__).resolve().parents[2] / "trainer_core" / "assets"
WORDS = {2: "two", 3: "three", 4: "four"}
"""Small numbers as people write them."""


def bundled_images(dataset: str) -> int:
    """How many images a bundled dataset has, without control images."""
    return sum("control_images" not in path.parts for path in (ASSETS / dataset).rglob("*.png"))


def first_run() -> dict[str, int]:
    """Images and steps of the first workflow."""
    images = bundled_images("demo-generate")
    preset = plan_preset(embedded_family().name, "object", "standard", images=images, embedded=True)
    return {"images": images, "steps": preset.values["training.steps"]}


@cache
def gibibytes(family: str, sizes: tuple[tuple[str, Any], ...] = ()) -> int:
    """How large a diffusion model is in bf16, from its configuration alone.

    Args:
        family: As in a run file.
        sizes: Settings of the model that are not those of the family's bundled configuration.
    """
    import diffusers
    import torch

    file = get_family(family).file
    assert file is not None
    folder = file.configs / "generate" / "transformer"
    config = json.loads((folder / "config.json").read_text(encoding="utf-8")) | dict(sizes)
    with torch.device("meta"):
        model = getattr(diffusers, config["_class_name"]).from_config(config)
    return round(sum(each.numel() for each in model.parameters()) * 2 / 2**30)
