"""What travels between the pack's nodes, small descriptions and never weights, and their run file.

ComfyUI keeps every output in its cache, so an output must cost nothing to keep.
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ...trainer_core.config import RunConfig
from ...trainer_core.errors import ConfigError, InputError, RunError
from ...trainer_core.families.registry import PACKAGES, get_family
from ...trainer_core.families.run_files import load_config

_OWN_FOLDERS = {"cache": "encoded samples", "pictures": "images of the graph"}
Values = Mapping[str, Any]
"""Values of a run file's section, by the names of its settings."""


@dataclass(frozen=True, slots=True)
class DatasetChoice:
    """A dataset folder and how it is read.

    Attributes:
        values: The run file's ``dataset`` section.
        role: What its images are for, where it is joined with others.
        weight: Factor on its images' loss, where it is joined with others.
        parts: What it was joined of; empty for one folder.
        made_by: Title of the node that describes it, whose inputs messages name.
    """

    values: Values
    role: str = "train"
    weight: float = 1.0
    parts: tuple[DatasetChoice, ...] = ()
    made_by: str | None = field(default=None, compare=False)


@dataclass(frozen=True, slots=True)
class Expert:
    """What one of two MODELs samples, where each has its own levels of noise (Wan 2.2 A14B).

    Attributes:
        begins: Whether it is the one for high noise, with which sampling begins.
        switch_at: Share of the sampling steps that the one for high noise makes.
        levels: The least and the most share of noise that is trained.
        config: ComfyUI's configuration of the MODEL, which the other one has too.
        other: The graph's MODEL of the other one, for previews; None where it is not connected.
    """

    begins: bool
    switch_at: float
    levels: tuple[float, float]
    config: str
    other: Any = field(default=None, compare=False)


@dataclass(frozen=True, slots=True)
class BaseChoice:
    """A base model: the run file's ``family``, ``base`` and ``training.precision``.

    Attributes:
        model: The graph's MODEL that is trained; None for a base of files. It is the graph's own
            object, which ComfyUI keeps as long as its loader's output.
        expert: Which levels of noise a MODEL is for; None for all.
        vision: The graph's CLIP_VISION, by which the MODEL sees the first frame of a clip, or None.
        audio: The graph's VAE of sound, with which clips are trained with theirs, or None.
    """

    family: str
    values: Values
    precision: str
    model: Any = field(default=None, compare=False)
    expert: Expert | None = None
    vision: Any = field(default=None, compare=False)
    audio: Any = field(default=None, compare=False)

    @property
    def embedded(self) -> bool:
        """Whether it is the tiny base that ships with the pack and needs no other node."""
        return self.values["path"] == "embedded"


@dataclass(frozen=True, slots=True)
class PreviewChoice:
    """What previews generate: the run file's ``preview`` section without ``every``.

    Its ``controls`` are files that Preview Prompts has written.
    """

    values: Values


@dataclass(frozen=True, slots=True)
class EncodedCache:
    """A finished cache.

    Attributes:
        manifest: Its list.
        base: The base that it was encoded for.
        dataset: The dataset's settings.
        previews: What was encoded for previews, or nothing.
        trained_clip: The graph's CLIP, whose text encoder is trained; None where it is not.
        marks: What its images were when they were encoded, by the paths of their folders.
    """

    manifest: Path
    base: BaseChoice
    dataset: DatasetChoice
    previews: PreviewChoice | None
    trained_clip: Any = None
    marks: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class AdapterChoice:
    """The run file's ``adapter`` section."""

    values: Values


@dataclass(frozen=True, slots=True)
class SettingsChoice:
    """Other parts of the run file, nested as there."""

    values: Values = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class RunHandle:
    """A run on disk.

    Attributes:
        folder: Its version folder.
        adapter: The adapter file that it yields, in layout comfyui.
        step: The step that this adapter is of.
    """

    folder: Path
    adapter: Path
    step: int


def run_config(base: BaseChoice, *layers: Mapping[str, Any]) -> RunConfig:
    """The run file that a base and values nested as there make; the last value wins.

    Raises:
        ConfigError: When the values are out of range or contradict each other.
    """
    training: dict[str, Any] = {"precision": base.precision}
    if base.model is not None:
        # Noise, eps and v models want other levels; the family knows which.
        training["sigma"] = {"density": "auto"}
    preview = {"shift": _sampled_shift(base)}
    first = {"family": base.family, "base": base.values, "training": training, "preview": preview}
    return load_config(_merged(first, *layers))


def _sampled_shift(base: BaseChoice) -> float | None:
    """What KSampler would move the noise levels of a preview by; None where the base says it."""
    if base.embedded or base.family not in PACKAGES:
        return None
    if base.values.get("distilled") == "train" or base.values.get("adapters"):
        return None  # A distilled base, of which some have a shift of their own.
    family = get_family(base.family)
    if family.graph is None or family.graph.shift is None:
        return None
    from ...trainer_core.bases.locate import locate_base

    edits = base.values.get("variant", "auto") not in {"auto", "generate"}
    base_settings = load_config({"family": base.family, "base": base.values}).base
    # Where it cannot be located, those say so who read it.
    with contextlib.suppress(InputError):
        located = locate_base(base_settings, family, edits, needs_encoders=False, to_train=False)
        return family.graph.shift(located)
    return None


def _merged(*layers: Mapping[str, Any]) -> dict[str, Any]:
    whole: dict[str, Any] = {}
    for layer in layers:
        for name, value in layer.items():
            inner = whole.get(name)
            nested = isinstance(value, Mapping)
            below = inner if isinstance(inner, dict) else {}
            whole[name] = _merged(below, value) if nested else value
    return whole


def _check_run_name(name: str) -> None:
    name = load_config({"output": {"name": name}}).output.name
    # Not every disk tells small letters from capital ones.
    if name.casefold() in _OWN_FOLDERS:
        raise ConfigError(
            f"output.name is {name}, where the nodes keep {_OWN_FOLDERS[name.casefold()]}",
            "a name that is no folder of the nodes",
            "Choose another name.",
        )


def check_run_name(inputs: Mapping[str, Any]) -> None:
    """Check the ``name`` among a node's inputs, if it is known yet.

    Raises:
        ConfigError: When no run can have it.
    """
    if "name" in inputs:
        _check_run_name(inputs["name"])


def training_config(
    base: BaseChoice,
    cache: EncodedCache,
    adapter: AdapterChoice,
    settings: SettingsChoice | None,
    own: Mapping[str, Any],
    output: str,
    *,
    can_preview: bool,
) -> RunConfig:
    """The run file of a training; what the node itself says wins over the settings.

    Args:
        base: The base, with what is part of it while it trains.
        cache: The encoded samples, with the dataset.
        settings: Everything else, or None for the defaults.
        own: What the training node itself says.
        can_preview: Whether previews can be sampled.

    Raises:
        InputError: When values are out of range or contradict each other, or the name cannot be.
        RunError: When the samples were encoded for another base.
    """
    _require_same_base(base, cache.base)
    previews = cache.previews.values if cache.previews else {}
    shown = can_preview and bool(previews.get("prompts"))
    silent = {} if shown else {"preview": {"every": 0}}
    config = run_config(
        base,
        {
            "dataset": cache.dataset.values,
            "adapter": adapter.values,
            "preview": previews,
            "cache": {"manifest": str(cache.manifest)},
            "training": {"text_encoder": {"train": cache.trained_clip is not None}},
        },
        settings.values if settings else {},
        own,
        {"output": {"dir": output}},
        silent,
    )
    _check_run_name(config.output.name)
    return config if base.expert is None else _of_expert(config, base.expert)


def _of_expert(config: RunConfig, expert: Expert) -> RunConfig:
    """Train the levels of noise that an expert is for, unless the settings name others.

    Raises:
        ConfigError: When those of the settings lie outside of the expert's.
    """
    sigma = config.training.sigma
    usual, (least, most) = type(sigma)(), expert.levels
    bounds = {
        "min": least if sigma.min == usual.min else sigma.min,
        "max": most if sigma.max == usual.max else sigma.max,
    }
    if bounds["min"] >= bounds["max"]:
        raise ConfigError(
            f"training.sigma.min is {sigma.min:g} and max is {sigma.max:g}, and the expert samples "
            f"levels from {least:g} to {most:g}",
            "levels of this expert",
            "Leave training.sigma.min and max as they are, or connect the other expert.",
        )
    changed = sigma.model_copy(update=bounds)
    training = config.training.model_copy(update={"sigma": changed})
    return config.model_copy(update={"training": training})


def _require_same_base(base: BaseChoice, encoded: BaseChoice) -> None:
    ours, theirs = _base_facts(base), _base_facts(encoded)
    if ours == theirs:
        return
    differing = [name for name in ours if ours[name] != theirs.get(name)]
    raise RunError(
        "Cache Embeddings was given a base with "
        + ", ".join(f"{name} {theirs.get(name)}" for name in differing)
        + ", and this node one with "
        + ", ".join(f"{name} {ours[name]}" for name in differing),
        "the same base on both nodes",
        f"Connect one {'Load Training Base' if base.model is None else 'Base From Model'} to both.",
    )


def _base_facts(base: BaseChoice) -> dict[str, Any]:
    # By the names of the inputs of Load Training Base.
    facts = {"source" if name == "path" else name: value for name, value in base.values.items()}
    # Nothing that is encoded depends on these.
    facts = {k: v for k, v in facts.items() if k not in {"adapters", "distilled"}}
    if base.expert is not None:  # both read the same cache
        facts["source"] = base.expert.config
    audio = "open" if base.audio is None else "connected"
    return {**facts, "family": base.family, "precision": base.precision, "audio_vae": audio}
