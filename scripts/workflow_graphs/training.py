"""The nodes between a base and an adapter file, for every full graph."""

from __future__ import annotations

from dataclasses import dataclass

from .graph import Node, Output, Workflow


@dataclass(frozen=True, slots=True)
class Learned:
    """What a full graph trains on and what for.

    Attributes:
        dataset: The images.
        base: The base.
        clip: Its text encoders.
        vae: Its VAE.
        previews: What is generated while it trains.
        run: The run's name.
        kind: Of the adapter.
        density: Of the noise levels.
    """

    dataset: Output
    base: Output
    clip: Output
    vae: Output
    previews: Output
    run: str
    kind: str = "lora"
    density: str = "shifted"


def training(flow: Workflow, learned: Learned) -> tuple[Node, Node, Node, Node]:
    """Add what encodes and trains: training, cache, adapter, settings."""
    cache = flow.node(
        "AdapterTrainerCache",
        {
            "dataset": learned.dataset,
            "base": learned.base,
            "clip": learned.clip,
            "vae": learned.vae,
            "previews": learned.previews,
        },
    )
    adapter = flow.node("AdapterTrainerAdapter", {"rank": 16, "kind": learned.kind})
    settings = flow.node(
        "AdapterTrainerSettings",
        {
            "preview_every": 250,
            "checkpoint_every": 250,
            "warmup_steps": 100,
            "sigma_density": learned.density,
        },
    )
    train = flow.node(
        "AdapterTrainerTrain",
        {
            "base": learned.base,
            "cache": cache["cache"],
            "adapter": adapter["adapter"],
            "settings": settings["settings"],
            "vae": learned.vae,
            "steps": 2000,
            "learning_rate": 1e-4,
            "name": learned.run,
        },
    )
    return train, cache, adapter, settings


def saved(flow: Workflow, train: Node, run: str) -> tuple[Node, Node]:
    """Add what saves the adapter, and what shows the loss."""
    save = flow.node("AdapterTrainerSave", {"run": train["run"]})
    plot = {"loss": train["loss"], "filename_prefix": f"{run}_loss"}
    return save, flow.node("LossGraphNode", plot, tall=330)
