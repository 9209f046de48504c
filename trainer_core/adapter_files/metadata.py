"""The strings in an adapter file's header: what made it, and what other tools ask for.

At level ``shareable`` the header tells nothing about its author: settings are copied by a list of
allowed names, so that a new setting stays out until somebody lets it in, and the workflow, which
holds prompts, paths and names, is left out whole.

A workflow is ComfyUI's, as its page reads it back: JSON texts, never more. There are two:
``workflow``, the graph as the page shows it, and ``prompt``, what the server ran. The trainer
writes them down and tells how large they are; nothing of what they say is acted on.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ..adapters.kinds.registry import FILE_RULES
from ..filesystem.text_files import parse_json
from ..types import AdapterState
from ..version import __version__

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
    "memory": ("gradient_checkpointing", "base_format", "compute"),
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
class RunInfo:
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
        samples: Number of training images, without regularization images and what is held out.
        date: ISO 8601 date or time of the file; None leaves it out.
        workflow: The texts of `workflow_texts`.
        base_adapters: The adapters that were part of the base: ``name``, ``sha256``, ``strength``
            and ``when`` of each.
        average: What average of the trained factors the file holds: its ``kind``, ``updates`` and
            ``decay`` or ``length``; None where it holds the last ones.
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
    base_adapters: Sequence[Mapping[str, Any]] = ()
    average: Mapping[str, Any] | None = None


def adapter_metadata(state: AdapterState, facts: RunInfo, level: str) -> dict[str, str]:
    """Make the header of an adapter file of what is known of a run.

    ``full`` copies every setting, and the workflow as far as it fits; ``shareable`` leaves out
    whatever could hold a path, name, caption or prompt, and the time of day; ``none`` writes
    nothing.
    """
    if level == "none":
        return {}
    full = level == "full"
    settings = dict(facts.settings) if full else shareable_settings(facts.settings)
    hidden = frozenset() if full else _PRIVATE["adapter"]
    own_settings = {k: None if k in hidden else v for k, v in state.settings.items()}
    settings.setdefault("adapter", own_settings)
    hashes, versions = dict(facts.hashes), dict(facts.versions)
    if not full:
        hashes, versions = _safe(hashes, _HASH), _safe(versions, _VERSION)
    own = {
        "version": __version__,
        "family": facts.family,
        "kind": state.kind,
        "step": facts.step,
        "settings": settings,
        "hashes": hashes,
        "versions": versions,
    }
    if facts.average is not None:
        own["average"] = dict(facts.average)
    if facts.base_adapters:
        # A name may say whose it is.
        hidden_keys = frozenset() if full else frozenset({"name"})
        own["base_adapters"] = [
            {key: value for key, value in each.items() if key not in hidden_keys}
            for each in facts.base_adapters
        ]
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


def own_facts(metadata: Mapping[str, str]) -> dict[str, Any]:
    """What this trainer wrote into a file's header, which may come from anybody; else empty."""
    try:
        facts = parse_json(metadata.get(SETTINGS_KEY, "{}"))
    except ValueError:
        return {}
    return facts if isinstance(facts, dict) else {}


def _safe(texts: Mapping[str, str], pattern: re.Pattern[str]) -> dict[str, str]:
    """Those that are a plain name and a text as expected."""
    return {
        name: text
        for name, text in texts.items()
        if _SAFE_NAME.fullmatch(name) and isinstance(text, str) and pattern.fullmatch(text)
    }


def _modelspec(
    state: AdapterState, facts: RunInfo, settings: Mapping[str, Any], full: bool
) -> dict[str, Any]:
    """ModelSpec 1.0.1 of Stability-AI, which demands the first four.

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
    facts: RunInfo,
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


WORKFLOW_KEYS = ("workflow", "prompt")
"""Keys of a header under which ComfyUI's page looks, the one that it prefers first."""

LARGEST_KEPT = 16 * 1024 * 1024
"""Bytes of one text that are kept beside a run; a workflow has some ten thousand."""

LARGEST_IN_HEADER = 1024 * 1024
"""Bytes that both texts may take in a header. ComfyUI's page reads the first 4 MiB of a file, and
the whole header with the list of all tensors has to be in them (frontend 1.49.6, pnginfo.ts)."""


def workflow_texts(texts: Mapping[str, object], warn: Callable[[str], None]) -> dict[str, str]:
    """Turn what the host says under `WORKFLOW_KEYS` into texts, and warn of what cannot be one.

    ASCII by key: an object of strict JSON each, of at most `LARGEST_KEPT` bytes. None is nothing.
    """
    kept: dict[str, str] = {}
    for key in WORKFLOW_KEYS:
        value = texts.get(key)
        if value is None:
            continue
        try:
            text = json.dumps(value, separators=(",", ":"), allow_nan=False)
        except (ValueError, TypeError, RecursionError) as error:
            warn(f"The {key} of this run is not kept: it is not JSON ({str(error)[:80]}).")
            continue
        if not isinstance(value, Mapping):
            warn(f"The {key} of this run is not kept: it is not a JSON object.")
        elif len(text) > LARGEST_KEPT:
            warn(f"The {key} of this run is not kept: it has {_size(text)}.")
        else:
            kept[key] = text
    return kept


def header_workflow(texts: Mapping[str, str]) -> dict[str, str]:
    """Choose of `workflow_texts` what fits into a header: at most `LARGEST_IN_HEADER` bytes."""
    room = LARGEST_IN_HEADER
    kept: dict[str, str] = {}
    for key in WORKFLOW_KEYS:
        # Quotation marks and backslashes take two bytes in a header.
        size = len(json.dumps(texts[key])) if key in texts else room + 1
        if size <= room:
            kept[key] = texts[key]
            room -= size
    return kept


def header_problems(texts: Mapping[str, str]) -> list[str]:
    """Say, in a line each, what does not fit into a header."""
    kept = header_workflow(texts)
    return [
        f"The {key} of this run ({_size(text)}) is too large for the adapter file's header; it is "
        "in the run's folder."
        for key, text in texts.items()
        if key not in kept
    ]


def workflow_summary(text: str) -> dict[str, Any]:
    """Tell of a header's workflow, which may be anybody's, what can be told without showing it.

    ``bytes``, and ``nodes`` or the ``problem`` with it.
    """
    summary: dict[str, Any] = {"bytes": len(text.encode(errors="surrogatepass"))}
    if summary["bytes"] > LARGEST_KEPT:
        return {**summary, "problem": "too large to be looked at"}
    try:
        content = parse_json(text)
    except ValueError:
        return {**summary, "problem": "not JSON"}
    if not isinstance(content, dict):
        return {**summary, "problem": "not a JSON object"}
    drawn = content.get("nodes")
    if isinstance(drawn, list):
        return {**summary, "nodes": len(drawn)}
    queued = [each for each in content.values() if isinstance(each, dict) and "class_type" in each]
    return {**summary, "nodes": len(queued)}


def _size(text: str) -> str:
    return f"{len(text) / 2**20:.1f} MiB"


_OF_FILE = frozenset(
    {
        "format",
        "lora_adapter_metadata",
        "modelspec.hash_sha256",
        "sshs_model_hash",
        "sshs_legacy_hash",
    }
)
"""What the layout writes by itself, and hashes of the old file's tensors."""

_OF_FORM = frozenset({"ss_network_module", "ss_network_dim", "ss_network_alpha", "ss_network_args"})


def kept_header(
    metadata: Mapping[str, str], layout: str, written: str, *, reformed: bool
) -> tuple[dict[str, str], tuple[str, ...]]:
    """Take over a header, which may come from anybody, without what would be wrong of a new file.

    The file may hold another kind of adapter, or layers of other ranks or another form. Gives the
    new file's strings, and a note for each workflow that is left out.
    """
    header = {key: text for key, text in metadata.items() if key not in _OF_FILE}
    notes = _without_large_workflows(header)
    if layout == written and not reformed:
        return header, notes
    header = {key: text for key, text in header.items() if key not in _OF_FORM}
    own = own_facts(header)
    if own:
        own["kind"] = written
        if isinstance(own.get("settings"), dict):
            own["settings"].pop("adapter", None)
        header[SETTINGS_KEY] = json.dumps(own, sort_keys=True)
    return header, notes


def _without_large_workflows(header: dict[str, str]) -> tuple[str, ...]:
    """Take out, in place, what ComfyUI's page could not read back."""
    workflows = {key: header[key] for key in WORKFLOW_KEYS if key in header}
    reasons = {
        key: problem
        for key, text in workflows.items()
        if (problem := workflow_summary(text).get("problem"))
    }
    sound = {key: text for key, text in workflows.items() if key not in reasons}
    fitting = header_workflow(sound)
    reasons |= {key: "too large for a header" for key in sound if key not in fitting}
    for key in reasons:
        del header[key]
    return tuple(f"The header's {key} was left out: {why}" for key, why in reasons.items())
