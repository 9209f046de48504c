"""The base of a run that is a MODEL of the graph."""

from __future__ import annotations

from typing import Any

from ...trainer_core.families.graph_model_denoiser import GRAPH_MODEL
from .expert_models import ExpertInputs, expert_of
from .socket_values import BaseChoice


def base_of_model(
    model: Any,
    precision: str,
    distilled: str = "refuse",
    expert: ExpertInputs | None = None,
    vision: Any = None,
    audio: Any = None,
) -> BaseChoice:
    """Describe a MODEL as a base, with the run file's settings, and what belongs to it.

    Raises:
        BaseModelError: When it is a kind of model that cannot be trained.
        InputError: When it carries what has no weights: hooks, or a LoRA in bypass mode; when it is
            not the expert that it is said to be; when a VAE of sound does not fit it.
    """
    from ..host.audio_vae import require_audio_vae
    from ..host.graph_model import GraphModel

    found = GraphModel(model)
    require_audio_vae(audio, found)
    # In the place of a path, which it lacks: runs and caches know the model by it.
    path = f"{GRAPH_MODEL}/{found.kind}-{found.fingerprint[:16]}"
    values = {"path": path, "distilled": distilled}
    role = expert_of(found, expert or ExpertInputs())
    return BaseChoice(
        GRAPH_MODEL,
        values,
        found.precision(precision),
        model=model,
        expert=role,
        vision=vision,
        audio=audio,
    )
