"""The strings in an adapter file's header: what made it, and what other tools ask for.

At level ``shareable`` the header tells nothing about its author: settings are copied by a list of
allowed names, so that a new setting stays out until somebody lets it in, and the workflow, which
holds prompts, paths and names, is left out whole.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from ...adapters.kinds.registry import FILE_RULES
from ...types import AdapterState
from ...version import __version__
from .workflow import header_workflow

SETTINGS_KEY = "adapter_trainer"
"""The header key that holds this trainer's own JSON."""

_ALL = ("*",)
_PRIVATE = {"adapter": frozenset({"start_from"})}
"""Settings of whole sections that could hold a path."""

_SHAREABLE: Mapping[str, tuple[str, ...]] = {
    "adapter": _ALL,
    "training": _ALL,
    "base": ("variant", "text_length"),
    "dataset": (
        "num_repeats",
        "caption_dropout",
        "resolution",
        "max_aspect_ratio",
        "upscale",
        "control_area",
    ),
    "memory": ("gradient_checkpointing",),
    "output": ("layouts", "dtype"),
    "seed": _ALL,
    "family": _ALL,
    "config_version": _ALL,
}
_SAFE_NAME = re.compile(r"[a-z0-9_.-]{1,64}", re.IGNORECASE)
_HASH = re.compile(r"(sha256:|0x)?[0-9a-f]{8,128}", re.IGNORECASE)
_VERSION = re.compile(r"[0-9][0-9a-z.+-]{0,40}", re.IGNORECASE)
_MIXED = {"fp32": "no", "bf16": "bf16", "fp16": "fp16"}
"""Precision to what kohya's trainers call it; ``auto`` is none of them."""


@dataclass(frozen=True, slots=True)
class RunFacts:
    """What the maker of a file knows of the run.

    Attributes:
        family: The architecture's name.
        step: Optimizer steps done.
        settings: The resolved run file as plain JSON values.
        title: The family's name for people; None takes ``family``.
        architecture: The base's name in `modelspec.architecture`; None takes ``family``.
        base_version: The base's name in `ss_base_model_version`; None takes ``family``.
        precision: The number format that was computed in: ``fp32``, ``bf16`` or ``fp16``.
        hashes: What to its hash, in hexadecimal.
        versions: Package to version.
        samples: Number of training images.
        date: ISO 8601 date or time of the file; None leaves it out.
        workflow: The texts of `workflow_texts`.
    """

    family: str
    step: int
    settings: Mapping[str, Any] = field(default_factory=dict)
    title: str | None = None
    architecture: str | None = None
    base_version: str | None = None
    precision: str | None = None
    hashes: Mapping[str, str] = field(default_factory=dict)
    versions: Mapping[str, str] = field(default_factory=dict)
    samples: int | None = None
    date: str | None = None
    workflow: Mapping[str, str] = field(default_factory=dict)


def adapter_metadata(state: AdapterState, facts: RunFacts, level: str) -> dict[str, str]:
    """Make the header of an adapter file.

    Args:
        state: The adapter.
        facts: What is known of the run.
        level: ``full`` copies every setting, and the workflow as far as it fits; ``shareable``
            leaves out whatever could hold a path, name, caption or prompt, and the time of day;
            ``none`` writes nothing.

    Returns:
        Key to string.
    """
    if level == "none":
        return {}
    full = level == "full"
    settings = dict(facts.settings) if full else shareable_settings(facts.settings)
    hidden = frozenset() if full else _PRIVATE["adapter"]
    own_settings = {k: None if k in hidden else v for k, v in state.settings.items()}
    settings.setdefault("adapter", own_settings)
    hashes = {
        k: v for k, v in facts.hashes.items() if full or (_fits(_SAFE_NAME, k) and _fits(_HASH, v))
    }
    versions = {
        k: v
        for k, v in facts.versions.items()
        if full or (_fits(_SAFE_NAME, k) and _fits(_VERSION, v))
    }
    own = {
        "version": __version__,
        "family": facts.family,
        "kind": state.kind,
        "step": facts.step,
        "settings": settings,
        "hashes": hashes,
        "versions": versions,
    }
    values: dict[str, Any] = {
        SETTINGS_KEY: json.dumps(own, sort_keys=True),
        **_modelspec(state, facts, settings, full),
        **_kohya(state, facts, settings, hashes),
        **(_named(settings) | header_workflow(facts.workflow) if full else {}),
    }
    return {key: str(value) for key, value in values.items() if value is not None}


def shareable_settings(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Copy the settings that tell nothing about the author."""
    kept: dict[str, Any] = {}
    for section, names in _SHAREABLE.items():
        if section not in settings:
            continue
        value = settings[section]
        if names == _ALL and section in _PRIVATE:
            kept[section] = {k: v for k, v in value.items() if k not in _PRIVATE[section]}
        elif names == _ALL:
            kept[section] = value
        else:
            kept[section] = {name: value[name] for name in names if name in value}
    return kept


def _fits(pattern: re.Pattern[str], value: object) -> bool:
    return isinstance(value, str) and pattern.fullmatch(value) is not None


def _modelspec(
    state: AdapterState, facts: RunFacts, settings: Mapping[str, Any], full: bool
) -> dict[str, Any]:
    """Source: Stability-AI/ModelSpec 1.0.1; it demands the first four.

    Every kind is a ``/lora``, as kohya's trainers write it: programs know no other adapter of a
    transformer by this key, and the algorithm is in `ss_network_args`.
    """
    resolution = settings.get("dataset", {}).get("resolution")
    date = facts.date if full or facts.date is None else facts.date[: len("2000-01-01")]
    title = f"{facts.title or facts.family} {FILE_RULES[state.kind].title}"
    title += f", {facts.step} steps" if facts.step else ""
    title += f", {date}" if date else ""
    if full:
        title = settings.get("output", {}).get("name", title)
    return {
        "modelspec.sai_model_spec": "1.0.1",
        "modelspec.architecture": f"{facts.architecture or facts.family}/lora",
        "modelspec.implementation": "diffusers",
        "modelspec.title": title,
        "modelspec.date": date,
        "modelspec.resolution": f"{resolution}x{resolution}" if resolution else None,
    }


def _named(settings: Mapping[str, Any]) -> dict[str, Any]:
    """What other programs show of a run's names; for level ``full`` alone."""
    base = str(settings.get("base", {}).get("path", "")).replace("\\", "/")
    return {
        "modelspec.trigger_phrase": settings.get("dataset", {}).get("trigger_word") or None,
        "ss_output_name": settings.get("output", {}).get("name"),
        "ss_sd_model_name": base.rstrip("/").rpartition("/")[2] or None,
    }


def _kohya(
    state: AdapterState,
    facts: RunFacts,
    settings: Mapping[str, Any],
    hashes: Mapping[str, str],
) -> dict[str, Any]:
    """The keys that model sites and other tools read, named as kohya's trainer named them."""
    ranks = {layer.rank for layer in state.layers.values()}
    alphas = {layer.alpha for layer in state.layers.values()}
    training = settings.get("training", {})
    dataset = settings.get("dataset", {})
    optimizer, schedule = training.get("optimizer", {}), training.get("schedule", {})
    rules, arguments = FILE_RULES[state.kind], {"algo": state.kind}
    options = settings.get("adapter", {})
    if options.get("dora"):
        arguments["dora_wd"] = "True"
        arguments["wd_on_output"] = str(options.get("dora_axis") == "output")
    arguments |= rules.kohya_arguments(options)
    resolution = dataset.get("resolution")
    return {
        "ss_network_module": rules.network_module,
        "ss_network_dim": ranks.pop() if len(ranks) == 1 else "Dynamic",
        "ss_network_alpha": alphas.pop() if len(alphas) == 1 else "Dynamic",
        "ss_network_args": json.dumps(arguments, sort_keys=True),
        "ss_network_dropout": options.get("dropout"),
        "ss_base_model_version": facts.base_version or facts.family,
        "ss_sd_model_hash": hashes.get("base"),
        "ss_steps": facts.step,
        "ss_max_train_steps": training.get("steps"),
        "ss_learning_rate": optimizer.get("learning_rate"),
        "ss_unet_lr": optimizer.get("learning_rate"),
        "ss_optimizer": optimizer.get("name"),
        "ss_lr_scheduler": schedule.get("name"),
        "ss_lr_warmup_steps": schedule.get("warmup_steps"),
        "ss_batch_size_per_device": training.get("batch_size"),
        "ss_gradient_accumulation_steps": training.get("gradient_accumulation_steps"),
        "ss_gradient_checkpointing": settings.get("memory", {}).get("gradient_checkpointing"),
        "ss_mixed_precision": _MIXED.get(facts.precision or training.get("precision")),
        "ss_max_grad_norm": training.get("max_grad_norm"),
        "ss_seed": settings.get("seed"),
        "ss_resolution": f"({resolution}, {resolution})" if resolution else None,
        "ss_num_train_images": facts.samples,
    }
