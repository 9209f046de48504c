"""``doctor``: what this machine has and, with a run file, what a run would do.

No weights are loaded: the denoiser is built without memory from the base's configuration.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..config import RunConfig
from ..errors import BaseModelError, TrainerError
from .arguments import Arguments
from .console import show_report
from .dataset import dataset_report
from .environment import NEEDED, environment_report, installed_version
from .estimate import Size, gibibytes, memory_estimate

if TYPE_CHECKING:
    from torch import nn

    from ..adapters import AttachedAdapter
    from ..families import BaseLocation, Family


@dataclass(frozen=True, slots=True)
class _EmptyBase:
    """A base without weights; `parameters` and `blocks` are counts, `width` the hidden state's."""

    family: Family
    location: BaseLocation
    transformer: nn.Module
    parameters: int
    blocks: int
    width: int


def run(arguments: Arguments) -> int:
    """Report; returns 2 when something would stop a run, 1 when a package is missing.

    Raises:
        ConfigError: When the run file is wrong.
    """
    report = environment_report()
    ready = all(installed_version(name) for name in NEEDED)
    problems: list[str] = []
    if (arguments.words or arguments.settings) and ready:
        report["run"], problems = run_report(arguments.config())
        report["problems"] = problems
    show_report(report, as_json=arguments.json)
    if problems:
        return 2
    return 0 if ready else 1


def run_report(config: RunConfig) -> tuple[dict[str, Any], list[str]]:
    """Say what a run would do.

    Args:
        config: The run file.

    Returns:
        Dataset, base, adapter and memory, as far as each can be found out; and what would stop
        the run, in words.
    """
    report: dict[str, Any] = {"family": config.family}
    problems: list[str] = []

    def attempt(name: str, work: Callable[[], Any]) -> Any:
        try:
            return work()
        except TrainerError as error:
            problems.append(f"{name}: {error.found}. Expected {error.expected}. {error.remedy}")
            return None

    problems += _folder_problems(config)
    dataset = attempt("dataset", lambda: dataset_report(config))
    if dataset is not None:
        report["dataset"], refusal = dataset
        if refusal is not None:
            problems.append(f"dataset: {refusal.found}. {refusal.remedy}")
        controls = max((int(count) for count in report["dataset"]["controls"]), default=0)
    else:
        controls = int(config.base.variant in {"edit", "edit_plus"})
    base = attempt("base", lambda: _open_base(config, controls > 0))
    if base is not None:
        report["base"] = _base_report(base)
        adapter = attempt("adapter", lambda: _attach(config, base))
        if adapter is not None:
            report["adapter"] = _adapter_report(config, adapter)
            estimate = memory_estimate(_size(config, base, adapter, controls))
            report["memory_estimate"] = {name: gibibytes(n) for name, n in estimate.items()}
    return report, problems


def _folder_problems(config: RunConfig) -> list[str]:
    folder = Path(config.output.dir)
    existing = next((path for path in (folder, *folder.parents) if path.exists()), folder)
    if existing.is_dir() and os.access(existing, os.W_OK):
        return []
    return [f"output.dir: {folder} cannot be written. Give write access or choose another folder."]


def _open_base(config: RunConfig, controls: bool) -> _EmptyBase:
    from ..families import get_family, locate_base
    from ..families.location import names_hub

    settings = config.base
    if names_hub(settings.path):
        settings = settings.model_copy(update={"path": str(_downloaded(settings.path))})
    family = get_family(config.family)
    location = locate_base(settings, family.name, controls)
    transformer = _build_empty(location, family)
    count = sum(p.numel() for p in transformer.parameters())
    blocks = sum(
        sum(1 for _ in transformer.get_submodule(name).children())
        for name in family.repeated_blocks
    )
    facts: Any = transformer.config
    width = facts["num_attention_heads"] * facts["attention_head_dim"]
    return _EmptyBase(family, location, transformer, count, blocks, width)


def _build_empty(location: BaseLocation, family: Family) -> nn.Module:
    import diffusers
    import torch

    from ..families.location import read_json
    from ..families.single_file import empty_model

    if location.file is not None:
        return empty_model(location, family.file)
    facts = read_json(location.folder / "transformer" / "config.json")
    with torch.device("meta"):
        return getattr(diffusers, facts["_class_name"]).from_config(facts)


def _downloaded(hub_id: str) -> Path:
    """Find a hub id in the local cache; a check must not download gigabytes."""
    from huggingface_hub import try_to_load_from_cache

    found = try_to_load_from_cache(hub_id, "model_index.json")
    if isinstance(found, str):
        return Path(found).parent
    raise BaseModelError(
        f"base.path: {hub_id} is not on this machine",
        "a local folder, or a hub id that was downloaded before",
        "`adapter-trainer cache` or `train` will download it; then ask the doctor again.",
    )


def _attach(config: RunConfig, base: _EmptyBase) -> AttachedAdapter:
    from ..adapters import attach

    unused = base.family.unused_layers(base.transformer)
    presets = base.family.presets
    return attach(base.transformer, config.adapter, presets=presets, unused=unused)


def _base_report(base: _EmptyBase) -> dict[str, Any]:
    return {
        "folder": base.location.file or base.location.folder,
        "encoders": base.location.encoders,
        "variant": base.location.variant,
        "text_length": base.location.text_length,
        "transformer": type(base.transformer).__name__,
        "parameters": base.parameters,
        "blocks": base.blocks,
    }


def _adapter_report(config: RunConfig, adapter: AttachedAdapter) -> dict[str, Any]:
    return {
        "kind": config.adapter.kind,
        "rank": config.adapter.rank,
        "layers": len(adapter.names),
        "trainable_parameters": sum(p.numel() for p in adapter.parameters()),
        "unused_layers": list(adapter.excluded_unused),
    }


def _size(config: RunConfig, base: _EmptyBase, adapter: AttachedAdapter, controls: int) -> Size:
    from ..training.memory import resolve_device, resolve_precision

    multiple = base.family.size_multiple
    edge = max(config.dataset.resolution // multiple, 1) * multiple
    _, height, width = base.family.latent_shape(base.location, edge, edge)
    # Every family so far makes one token of 2 x 2 latents.
    picture = height * width // 4
    precision = resolve_precision(config.training.precision, resolve_device(config.memory.device))
    return Size(
        base_parameters=base.parameters,
        trainable_parameters=sum(p.numel() for p in adapter.parameters()),
        blocks=base.blocks,
        width=base.width,
        tokens=picture * (1 + controls) + base.location.text_length,
        samples=config.training.batch_size,
        value_bytes=2 if precision == "bf16" else 4,
        checkpointing=config.memory.gradient_checkpointing,
    )
