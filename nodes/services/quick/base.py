"""The base of Train LoRA (Quick): a file whose family is known, or the MODEL of the graph."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from ....trainer_core.errors import InputError, TrainerError
from ....trainer_core.families.graph_model_denoiser import GRAPH_MODEL
from ....trainer_core.types import ANY_CLIPS, FrameGrid
from ...host import comfy_host
from ..node_checks import require_in_comfyui

if TYPE_CHECKING:
    from .plan import Answers

_DIFFUSION_MODEL = "UNETLoader"
_FOLDERS = {_DIFFUSION_MODEL: "diffusion_models", "CheckpointLoaderSimple": "checkpoints"}
"""Core's loaders of a MODEL, to the kind of folder that their file is in."""
NO_ADAPTER = "none"
_DISTILLED = frozenset({"distilled"})


class QuickBase(NamedTuple):
    """The base of a plan.

    Attributes:
        name: As `comfy_host.base_names` has it; of a MODEL of the graph what was answered.
        family: Of the base.
        title: What people call it.
        source: Where it was read from, for the panel.
        variant: Of the base; None for the one that fits the goal.
        values: Of the section ``base``, by YAML path.
        traits: As `plan_preset` takes them.
        billions: 10^9 numbers of it; None where the preset knows better.
        clips: Lengths of the clips that it trains, `ANY_CLIPS` of a MODEL that is not loaded yet;
            None where it trains images alone.
    """

    name: str
    family: str
    title: str
    source: str
    variant: str | None
    values: Mapping[str, Any]
    traits: frozenset[str] = frozenset()
    billions: float | None = None
    clips: FrameGrid | None = None


def quick_base(answers: Answers, model: Any) -> QuickBase:
    """The base: that of a file whose family is known by name, else the MODEL of the graph.

    Raises:
        InputError: When the MODEL's loader is none whose file can be read before it is loaded, or
            the base cannot be trained on.
    """
    from ....trainer_core.bases.locate import count_numbers, detect_base, detect_variant
    from ....trainer_core.families.registry import get_family

    # ComfyUI's lists on Windows have backslashes between folders.
    loader, _, file = answers.loader.replace("\\", "/").partition("/")
    name = answers.base
    if loader == _DIFFUSION_MODEL and _has_family(f"diffusion_models/{file}"):
        name = f"diffusion_models/{file}"
    elif loader or model is not None:
        return _graph_base(answers, loader, file, model)
    path = comfy_host.base_path(name)
    adapters = training_adapters(answers.training_adapter)
    family = require_in_comfyui(get_family(detect_base(path)))
    variant = detect_variant(path, family)
    return QuickBase(
        name=name,
        family=family.name,
        title=family.title,
        source=f"Read from {name}.",
        variant=variant,
        values={"base.path": path, **({"base.adapters": adapters} if adapters else {})},
        traits=_DISTILLED if adapters else frozenset(),
        billions=count_numbers(path, family) / 1e9,
    )


def training_adapters(name: str) -> list[dict[str, Any]]:
    """The run file's ``base.adapters`` for a file of the loras folder; none for `NO_ADAPTER`."""
    if name == NO_ADAPTER:
        return []
    return [{"path": str(comfy_host.lora_path(name)), "strength": 1.0, "when": "training"}]


def _has_family(name: str) -> bool:
    """Whether a file is of a family that a graph trains from its file."""
    from ....trainer_core.bases.locate import detect_base
    from ....trainer_core.families.registry import get_family

    try:
        return get_family(detect_base(comfy_host.base_path(name))).graph is not None
    except TrainerError:
        return False


def _graph_base(answers: Answers, loader: str, file: str, model: Any) -> QuickBase:
    """The MODEL of the graph itself, by what it tells, or by its file where it is not loaded."""
    if answers.training_adapter != NO_ADAPTER:
        raise InputError(
            f"the training adapter {answers.training_adapter}, and a MODEL of the graph",
            "a base that is chosen by its file: of a MODEL an adapter cannot be left out again",
            "Disconnect model and choose the distilled base as base, or set training_adapter to "
            "none.",
        )
    variant = "edit_plus" if answers.goal == "edit" else "generate"
    clips: FrameGrid | None = ANY_CLIPS
    if model is None:
        folder = _FOLDERS.get(loader)
        if folder is None:
            raise InputError(
                f"model is connected to a node that is not known here ({loader or 'no name'})",
                "Load Diffusion Model or Load Checkpoint, whose file says what the model is",
                "Press Run, which reads the model itself; or connect one of these loaders.",
            )
        from ...host.model_file_traits import traits_of_file

        traits = traits_of_file(Path(comfy_host.base_path(f"{folder}/{file}")))
        title = file
    else:
        from ...host.graph_model import GraphModel

        found = GraphModel(model)
        title, traits, clips = found.title, found.traits, found.clips
        if not found.takes_references:
            variant = "generate"
    return QuickBase(
        name=answers.base,
        family=GRAPH_MODEL,
        title=title,
        source="Connected to model.",
        variant=variant,
        values={},
        traits=traits,
        clips=clips,
    )
