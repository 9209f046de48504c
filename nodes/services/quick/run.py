"""Runs Train LoRA (Quick): encodes and trains as the full graph does, under one node."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ....trainer_core.errors import TrainerError
from ..graph_run import encode, run_training
from ..panel.run_observer import NodeObserver
from ..socket_values import RunHandle
from .plan import Answers, Connected, as_node_values, plan_run, require_encoders


def run_quick(
    node_id: str, answers: Answers, connected: Connected, workflow: Mapping[str, object]
) -> tuple[RunHandle, Sequence[float]]:
    """Encode what is missing for a node, and train; gives the run, and its losses.

    `workflow` is what `queued_graph` gave; it is kept with the run.

    Raises:
        TrainerError: As `plan_run`, `encode` and `run_training`.
    """
    clip, vae = connected.clip, connected.vae
    plan = plan_run(answers, connected.model)
    parts = as_node_values(plan, connected)
    require_encoders(parts.base, clip, vae)
    steps = int(plan.values.get("training.steps") or 0)
    observer = NodeObserver(
        node_id, answers.run_name, trains=True, steps=steps, choices=plan.choices, queued=workflow
    )
    try:
        cache = encode(
            node_id,
            parts.dataset,
            parts.base,
            clip=clip,
            vae=vae,
            previews=parts.previews,
            options={},
            observer=observer,
        )
        return run_training(
            node_id,
            parts.base,
            cache,
            adapter=parts.adapter,
            settings=parts.settings,
            vae=vae,
            own=parts.own,
            workflow=workflow,
            observer=observer,
        )
    except TrainerError:
        # A setting that is refused before anything is computed; else the panel knows already.
        observer.ended()
        raise
