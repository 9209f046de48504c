"""Settings of what is measured while a run trains, and who else is told."""

from __future__ import annotations

from typing import Literal

from .section import Section, setting


class MetricsSection(Section):
    """What is written down beside loss and learning rate."""

    trackers: list[Literal["tensorboard", "wandb"]] = setting(
        ["tensorboard"],
        "Leave it, or add wandb, which sends the run's numbers and preview images to Weights & "
        "Biases, prompts and paths only where output.metadata is full. Who is told besides "
        "metrics.jsonl; one that is not installed is left out.",
        advanced=True,
    )
    sigma_bands: int = setting(
        4,
        "Leave it. Into how many bands of equal width noise levels are put for the loss by sigma.",
        advanced=True,
        ge=1,
        le=20,
    )
    norms_every: int = setting(
        50,
        "Leave it. Steps between two measurements of how large the adapter is beside the base's "
        "weights, by block, which warn of one that does nothing or too much; 0: never.",
        advanced=True,
        ge=0,
    )
