"""Figures that the notes of workflows say, from where they are decided."""

from __future__ import annotations

from pathlib import Path

from trainer_core.families.presets import plan_preset
from trainer_core.families.registry import embedded_family

ASSETS = Path(__file__).resolve().parents[2] / "trainer_core" / "assets"
WORDS = {1: "one", 2: "two", 3: "three", 4: "four"}
"""Small numbers as people write them."""


def bundled_images(dataset: str) -> int:
    """How many images a bundled dataset has, without control images."""
    return sum("control_images" not in path.parts for path in (ASSETS / dataset).rglob("*.png"))


def first_run() -> dict[str, int]:
    """Images and steps of the first workflow."""
    images = bundled_images("demo-generate")
    preset = plan_preset(embedded_family().name, "object", "standard", images=images, embedded=True)
    return {"images": images, "steps": preset.values["training.steps"]}
