"""What ComfyUI's own reader makes of adapter files, and how far results are apart."""

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import torch
from comfyui.host import ComfyHost
from safetensors import safe_open
from safetensors.torch import load_file

from trainer_core.adapters.dora import DORA_SCALE
from trainer_core.adapters.kinds.kind import LayerPlan
from trainer_core.adapters.kinds.registry import KINDS
from trainer_core.config import AdapterConfig
from trainer_core.types import AdapterState, LayerState


def read_by_comfyui(
    host: ComfyHost, folder: Path, adapters: Iterable[str], names: Mapping[str, str]
) -> dict[str, tuple[dict[str, Any], list[str], int]]:
    """Patched weights, messages and number of patched layers of each adapter.

    Args:
        host: Where ComfyUI's reader runs.
        folder: It has ``base.safetensors``, and each adapter under its name.
        adapters: Their names.
        names: What a name in the files means, see `reader_process`.
    """
    adapters = list(adapters)

    def path(name: str, ending: str = "safetensors") -> str:
        return str(folder / f"{name}.{ending}")

    jobs = {
        "base": path("base"),
        "names": names,
        "adapters": {path(name): path(name, "result") for name in adapters},
    }
    (folder / "jobs.json").write_text(json.dumps(jobs), encoding="utf-8")
    host.run("reader_process.py", folder / "jobs.json")
    found = {}
    for name in adapters:
        with safe_open(path(name, "result"), "pt") as file:
            header = file.metadata()
        weights = load_file(path(name, "result"))
        found[name] = (weights, json.loads(header["messages"]), int(header["patched"]))
    return found


def relative(value: torch.Tensor, reference: torch.Tensor) -> float:
    """The size of a difference as a share of the reference's."""
    assert value.shape == reference.shape
    return float((value - reference).norm() / reference.norm())


ALPHA = 3.0
"""Of the drawn adapters, so that a reader that forgot it is noticed."""


def drawn_state(layers: Mapping[str, tuple[int, ...]], **options: Any) -> AdapterState:
    """An adapter with every factor random, and lengths of DoRA above 0.

    Args:
        layers: Name to the shape of a weight: outputs, inputs and the window of a convolution.
        options: Settings of the adapter.
    """
    config = AdapterConfig(**{"rank": 2, "alpha": ALPHA, **options})
    kind, generator = KINDS[config.kind], torch.Generator().manual_seed(0)
    found = {}
    for name, (outputs, inputs, *window) in layers.items():
        kernel = tuple(window)
        plan = LayerPlan(name, name, inputs, outputs, config.rank, ALPHA, config, kernel)
        tensors = {
            factor: torch.randn(shape, generator=generator)
            for factor, shape in kind.layer_shapes(plan).items()
        }
        if DORA_SCALE in tensors:
            tensors[DORA_SCALE] = tensors[DORA_SCALE].abs() + 0.5
        scale = kind.scale(tensors, ALPHA, config.rank)
        found[name] = LayerState(tensors, scale * config.rank, config.rank, kernel)
    return AdapterState(config.kind, found)


def drawn_base(shapes: Mapping[str, tuple[int, ...]]) -> dict[str, torch.Tensor]:
    """Random weights of a base by their names."""
    generator = torch.Generator().manual_seed(1)
    return {
        f"{name}.weight": torch.randn(shape, generator=generator) for name, shape in shapes.items()
    }


def with_lengths(base: torch.Tensor, delta: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
    """Textbook: what DoRA adds to a base, all of whose columns get these lengths."""
    total = base + delta
    axes = [axis for axis in range(total.dim()) if axis != 1]
    return lengths * total / total.square().sum(dim=axes, keepdim=True).sqrt() - base
