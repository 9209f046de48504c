"""Runs Train LoRA (Quick): encodes and trains as the full graph does, under one node."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ...trainer_core.errors import TrainerError
from .choices import RunHandle
from .graph_run import encode, run_training
from .panel import NodeObserver
from .quick_plan import Answers, parts_of, plan_run, require_encoders


def run_quick(
    node_id: str,
    answers: Answers,
    *,
    model: Any,
    clip: Any,
    vae: Any,
    vision: Any,
    workflow: Mapping[str, object],
    other: Any = None,
) -> tuple[RunHandle, Sequence[float]]:
    """Encode what is missing, and train.

    Args:
        node_id: The node that shows both.
        model: The graph's MODEL; None for a base that the answers name.
        clip: The graph's text encoder; None for a base with its own.
        vae: Its image encoder; None for a base with its own.
        vision: Its CLIP_VISION; None where nothing is connected.
        workflow: What `queued_graph` gave; kept with the run.
        other: The MODEL of the other expert, for previews; None without.

    Returns:
        The run, and its losses.

    Raises:
        TrainerError: As `plan_run`, `encode` and `run_training`.
    """
    plan = plan_run(answers, model)
    parts = parts_of(plan, model, other, vision)
    require_encoders(parts.base, clip, vae)
    steps = int(plan.values.get("training.steps") or 0)
    observer = NodeObserver(
        node_id,
        answers.run_name,
        trains=True,
        steps=steps,
        choices=plan.choices,
        queued=workflow,
    )
    try:
        cache = encode(node_id, parts.dataset, parts.base, clip, vae, parts.previews, {}, observer)
        return run_training(
            node_id,
            parts.base,
            cache,
            parts.adapter,
            parts.settings,
            vae,
            parts.own,
            workflow,
            observer=observer,
        )
    except TrainerError:
        # A setting that is refused before anything is computed; else the panel knows already.
        observer.ended()
        raise
