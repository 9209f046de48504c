"""``doctor``: what this machine has, and what a run would do, before it starts.

Nothing is downloaded, and the denoiser is built without memory from the base's configuration. Its
weights are loaded only to say what fewer bits cost, for a run file that names a finished cache.
"""

from __future__ import annotations

import os
import platform
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..config import RunConfig
from ..config.defaults import resolved_length, run_length
from ..errors import TrainerError
from ..requirements import MissingLibrary, all_requirements, installed_version, meets
from ..version import __version__
from .allocator import allocator_report
from .arguments import Arguments
from .console import show, show_report
from .dataset import dataset_report
from .layer_report import layer_report, other_layers
from .local_base import locate_local_base
from .memory_report import memory_report
from .missing_inputs import missing_inputs

if TYPE_CHECKING:
    import torch

    from ..adapters import AttachedAdapter
    from ..offload.empty_base import EmptyBase
    from ..training.prepare.encode_dataset import Prepared
    from ..types import AdapterState


def doctor(arguments: Arguments) -> int:
    """Report; returns 2 when something would stop a run, 1 when a package is missing.

    Raises:
        ConfigError: When the run file is wrong.
    """
    own, arguments = arguments.split(("layers",))
    if own:
        show_report(layer_report(arguments.word("a base")), as_json=arguments.json)
        return 0
    config = arguments.config() if arguments.words or arguments.settings else None
    ready = all(installed_version(name) for name in NEEDED)
    problems: list[str] = []
    run: dict[str, Any] = {}
    if config is not None:
        if not arguments.json:
            # What can be told at once is told at once: the rest takes seconds.
            for error in missing_inputs(config):
                show(f"Problem: {error.found}. {error.remedy}")
        if ready:
            run["run"], problems = run_report(config)
            adapter = run["run"].get("adapter")
            if adapter is not None and not arguments.json:
                from ..adapters.layer_list import layer_kinds

                adapter["adapted"] = layer_kinds(adapter["adapted"])
    environment = environment_report()
    # What is wrong stands first, and what can be looked up stands last.
    lacking = [line for line in environment["missing"] if TRAINING_NEEDS in line]
    report = {"verdict": _verdict([*lacking, *problems], run=config is not None)}
    if run:
        report |= {"problems": problems, **run}
    show_report({**report, **environment}, as_json=arguments.json)
    if problems:
        return 2
    return 0 if ready else 1


def _verdict(problems: Sequence[str], *, run: bool) -> str:
    if not problems:
        return (
            "ready: train would start" if run else "ready: nothing that training needs is missing"
        )
    rest = f" (and {len(problems) - 1} more)" if len(problems) > 1 else ""
    return f"not ready: {problems[0]}{rest}"


def run_report(config: RunConfig) -> tuple[dict[str, Any], list[str]]:
    """What a run would do, as far as that can be found out, and in words what would stop it."""
    from ..families.trainable_text import with_text
    from ..training.memory.velocity_error import velocity_report
    from ..training.prepare.attach_adapter import attach_empty
    from ..training.prepare.finished_cache import require_variant

    report: dict[str, Any] = {"family": config.family, **_steps(config)}
    problems: list[str] = []

    def attempt(name: str, work: Callable[[], Any]) -> Any:
        try:
            return work()
        except TrainerError as error:
            if not any(error.found in each for each in problems):
                problems.append(f"{name}: {error.found}. Expected {error.expected}. {error.remedy}")
            return None

    problems += _folder_problems(config)
    start = attempt("settings", lambda: _start(config))
    manifest = config.cache.manifest
    usable = manifest is None or attempt("cache", lambda: _finished_cache(config)) is not None
    dataset = attempt("dataset", lambda: dataset_report(config))
    if dataset is not None:
        report["dataset"], refusal = dataset
        report["steps"] = report["dataset"].pop("steps")
        if refusal is not None:
            problems.append(f"dataset: {refusal.found}. {refusal.remedy}")
        controls = max((int(count) for count in report["dataset"]["controls"]), default=0)
    else:
        controls = int(config.base.variant not in {"auto", "generate"})
    base = attempt("base", lambda: _open_base(config, controls > 0))
    if base is not None:
        report["base"] = _base_report(base)
        attempt("settings", lambda: require_variant(config, base.family, base.location.variant))
        report["base"] |= attempt("base", lambda: _beside_report(config, base)) or {}
        adapter = attempt("adapter", lambda: attach_empty(config, base, start))
        if adapter is not None:
            report["adapter"] = _adapter_report(config, adapter)
            adapter.detach()
            report["adapter"]["not_chosen"] = other_layers(
                base.transformer, [*adapter.names, *adapter.excluded_unused]
            )
            if usable:
                report |= memory_report(with_text(config), base, controls, attempt)
        narrow = config.memory.base_format not in {"auto", "dense"}
        if manifest and (narrow or config.memory.compute != "dense"):
            report["velocity_error"] = attempt("memory", lambda: velocity_report(config))
    return report, problems


def _steps(config: RunConfig) -> dict[str, int]:
    """How many steps; empty where they follow from images, which are not counted yet."""
    if config.dataset.slider.is_on:
        return {"steps": run_length(resolved_length(config, 1))}
    return {} if config.training.steps is None else {"steps": config.training.steps}


def _folder_problems(config: RunConfig) -> list[str]:
    folder = Path(config.output.dir)
    existing = next((path for path in (folder, *folder.parents) if path.exists()), folder)
    if existing.is_dir() and os.access(existing, os.W_OK):
        return []
    return [f"output.dir: {folder} cannot be written. Give write access or choose another folder."]


def _open_base(config: RunConfig, controls: bool) -> EmptyBase:
    from ..families.registry import get_family
    from ..offload.empty_base import empty_base

    family = get_family(config.family)
    location = family.joined(locate_local_base(config.base, family, controls), config)
    return empty_base(location, family)


def _start(config: RunConfig) -> AdapterState | None:
    """Refuse what the settings alone exclude; gives the adapter that the run would start from."""
    from ..device import resolve_device, resolve_precision
    from ..families.registry import get_family
    from ..training.setup.refusals import require_possible, require_resumable
    from ..training.setup.starting_point import find_start
    from ..training.step.processes import SingleProcess

    family = get_family(config.family)
    processes = SingleProcess(resolve_device(config.memory.device))
    require_possible(config, family, processes)
    precision = resolve_precision(config.training.precision, processes.device)
    start = find_start(config, family, precision, processes)
    require_resumable(config, family, precision, start=start, processes=processes)
    return start.adapter


def _finished_cache(config: RunConfig) -> Prepared:
    from ..device import resolve_device
    from ..families.registry import get_family
    from ..training.prepare.encode_dataset import read_finished
    from ..training.step.processes import SingleProcess

    processes = SingleProcess(resolve_device(config.memory.device))
    return read_finished(config, get_family(config.family), processes)


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


def _beside_report(config: RunConfig, base: EmptyBase) -> dict[str, Any]:
    """The adapters that are part of the base, and whether it was distilled."""
    from ..adapter_files.factors.put_on_base import check_on_base
    from ..bases.distilled import distilled_note
    from ..bases.read_base_adapters import outline_base_adapters

    adapters = outline_base_adapters(config.base, base.family)
    check_on_base(base.transformer, base.family.layers.key_map, adapters)
    note = distilled_note(config.base, base.family, base.location)
    listed = [
        {
            "file": each.name,
            "kind": each.state.kind,
            "layers": len(each.state.layers),
            "strength": each.strength,
            "when": each.when,
        }
        for each in adapters
    ]
    return {**({"adapters": listed} if listed else {}), **({"distilled": note} if note else {})}


def _adapter_report(config: RunConfig, adapter: AttachedAdapter) -> dict[str, Any]:
    from ..adapters.layer_list import adapted_layers
    from ..adapters.parameter_groups import pace_notes
    from ..training.optimizers import OPTIMIZERS

    layers, rate = adapted_layers(adapter), config.training.optimizer.learning_rate
    pace = OPTIMIZERS[config.training.optimizer.name].pace
    return {
        "kind": config.adapter.kind,
        "rank": config.adapter.rank,
        "layers": len(layers),
        "trainable_parameters": sum(p.numel() for p in adapter.parameters()),
        "learning_rate": rate,
        "unused_layers": list(adapter.excluded_unused),
        "matched_again": list(adapter.matched_again),
        "adapted": layers,
        "advice": [*adapter.notes, *pace_notes(adapter.plans, rate, pace)],
    }


NEEDED = ("torch", "diffusers", "peft", "accelerate", "transformers")
"""What the extra `train` installs."""

TRAINING_NEEDS = "training needs it"

OPTIONAL = {"tensorboard": "training curves for TensorBoard (metrics.jsonl is always written)"}
"""Packages that a run does without, to what they would add; each is an extra of its own name."""

_ALWAYS = ("numpy", "pillow", "pydantic", "pyyaml", "safetensors")


def environment_report() -> dict[str, Any]:
    """Describe the environment; nothing is changed, and no package is imported but torch."""
    versions = {name: installed_version(name) for name in (*NEEDED, *_ALWAYS, *OPTIONAL)}
    report: dict[str, Any] = {
        "adapter_trainer": __version__,
        "python": platform.python_version(),
        "platform": platform.platform(),
        "packages": {name: version or "not installed" for name, version in versions.items()},
        "missing": missing_packages(versions),
    }
    if versions["torch"]:
        report["devices"] = device_reports()
        if any(each["device"].startswith("cuda") for each in report["devices"]):
            report["allocator"] = allocator_report()
    return report


def missing_packages(versions: dict[str, str | None]) -> list[str]:
    """One line for each package that is absent or too old: what it is for and how to get it.

    Args:
        versions: Installed versions by name, None for what is absent; of `NEEDED` and `OPTIONAL`.
    """
    lines = []
    for name, minimum in all_requirements():
        found = versions.get(name)
        if name in NEEDED and not (found and meets(found, minimum)):
            library = MissingLibrary(name, minimum, found)
            lines.append(f'{library}; {TRAINING_NEEDS}: pip install "adapter-trainer[train]"')
    lines += [
        f'{name} adds {use}: pip install "adapter-trainer[{name}]"'
        for name, use in OPTIONAL.items()
        if not versions[name]
    ]
    return lines


def device_reports() -> list[dict[str, Any]]:
    """Describe the CPU and every accelerator of the best kind that torch sees."""
    import torch

    from ..device import resolve_device, resolve_precision

    best = resolve_device("auto")
    devices = [torch.device("cpu")]
    if best.type != "cpu":
        count = torch.get_device_module(best).device_count()
        devices += [torch.device(best.type, index) for index in range(count)]
    return [
        {
            "device": str(device),
            "name": _device_name(device),
            "default": device == best or (device.type == best.type and best.index is None),
            "automatic_precision": resolve_precision("auto", device),
            "number_formats": [
                name for name in ("float32", "bfloat16", "float16") if _has(device, name)
            ],
            "attention": _attention(device),
        }
        for device in devices
    ]


def _device_name(device: torch.device) -> str:
    import torch

    if device.type == "cpu":
        return f"{platform.processor() or platform.machine()}, {torch.get_num_threads()} threads"
    module = torch.get_device_module(device)
    name = getattr(module, "get_device_name", None)
    return str(name(device)) if name is not None else device.type


def _has(device: torch.device, dtype_name: str) -> bool:
    import torch

    try:
        ones = torch.ones(8, 8, dtype=getattr(torch, dtype_name), device=device)
        return bool((ones @ ones).sum().item() == 512)
    except (RuntimeError, TypeError):
        return False


def _attention(device: torch.device) -> list[str]:
    """The kernels of torch's attention that run in the device's automatic precision."""
    import torch
    from torch.nn.attention import SDPBackend, sdpa_kernel
    from torch.nn.functional import scaled_dot_product_attention

    from ..device import DTYPES, resolve_precision

    dtype = DTYPES[resolve_precision("auto", device)]
    query = torch.ones(1, 2, 64, 64, dtype=dtype, device=device)

    def runs(backend: SDPBackend) -> bool:
        try:
            with sdpa_kernel(backend):
                scaled_dot_product_attention(query, query, query)
        except RuntimeError:
            return False
        return True

    kernels = {
        "flash": SDPBackend.FLASH_ATTENTION,
        "memory_efficient": SDPBackend.EFFICIENT_ATTENTION,
        "cudnn": SDPBackend.CUDNN_ATTENTION,
        "plain": SDPBackend.MATH,
    }
    return [name for name, backend in kernels.items() if runs(backend)]
