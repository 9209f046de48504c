"""The `RunConfig` of a run in the graph: the values of its nodes, merged; the last one wins."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from typing import Any

from ...trainer_core.config import RunConfig
from ...trainer_core.errors import ConfigError, InputError, RunError
from ...trainer_core.families.registry import PACKAGES, get_family
from ...trainer_core.families.run_files import load_config
from .socket_values import AdapterChoice, BaseChoice, EncodedCache, Expert, SettingsChoice

_OWN_FOLDERS = {"cache": "encoded samples", "pictures": "images of the graph"}


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
            "a name that is not a folder of the nodes",
            "Choose another name.",
        )


def check_run_name(inputs: Mapping[str, Any]) -> None:
    """Check ``name`` among a node's inputs, if known; `ConfigError` for a bad one."""
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

    The base comes with what is part of it while it trains.

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
            f"training.sigma.min is {sigma.min:g} and training.sigma.max is {sigma.max:g}, and the "
            f"expert samples levels from {least:g} to {most:g}",
            "levels of this expert",
            "Leave training.sigma.min and training.sigma.max as they are, or connect the other "
            "expert.",
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
