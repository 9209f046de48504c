"""``doctor``: what this machine has and, with a run file, what a run would do.

No weights are loaded: the denoiser is built without memory from the base's configuration.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..config import RunConfig
from ..errors import TrainerError
from .arguments import Arguments
from .console import show_report
from .dataset import dataset_report
from .environment import NEEDED, environment_report, installed_version
from .local_base import locate_local_base

if TYPE_CHECKING:
    from ..adapters import AttachedAdapter
    from ..training.memory_estimate import EmptyBase, Size


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
            from ..training.memory_estimate import gibibytes, memory_estimate

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


def _open_base(config: RunConfig, controls: bool) -> EmptyBase:
    from ..families.registry import get_family
    from ..training.memory_estimate import empty_base

    family = get_family(config.family)
    return empty_base(locate_local_base(config.base, family, controls), family)


def _attach(config: RunConfig, base: EmptyBase) -> AttachedAdapter:
    from ..adapters import attach

    unused = base.family.unused_layers(base.transformer)
    presets = base.family.presets
    return attach(base.transformer, config.adapter, presets=presets, unused=unused)


def _base_report(base: EmptyBase) -> dict[str, Any]:
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
    from ..adapters.learning_rates import pace_notes

    rate = config.training.optimizer.learning_rate
    return {
        "kind": config.adapter.kind,
        "rank": config.adapter.rank,
        "layers": len(adapter.names),
        "trainable_parameters": sum(p.numel() for p in adapter.parameters()),
        "learning_rate": rate,
        "unused_layers": list(adapter.excluded_unused),
        "advice": [*adapter.notes, *pace_notes(adapter.plans, rate)],
    }


def _size(config: RunConfig, base: EmptyBase, adapter: AttachedAdapter, controls: int) -> Size:
    from ..device import resolve_device
    from ..training.memory_estimate import picture_tokens, step_size
    from ..types import Bucket

    multiple = base.family.size_multiple
    edge = max(config.dataset.resolution // multiple, 1) * multiple
    tokens = picture_tokens(base, Bucket(edge, edge)) * (1 + controls)
    trainable = sum(p.numel() for p in adapter.parameters())
    return step_size(config, base, trainable, tokens, resolve_device(config.memory.device))
