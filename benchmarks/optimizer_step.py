"""A step of AdamW over an adapter of 1440 tensors: torch's ways, ours, and flat buffers.

Run it as ``python -m benchmarks.optimizer_step``. Times are CPU seconds of one thread, the quickest
of some rounds in which the ways take turns, so that other work on the machine disturbs them little.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from trainer_core.adapters.parameter_groups import ParameterGroup
from trainer_core.config import OptimizerSection
from trainer_core.training.optimizers import make_optimizer

from .measuring.counters import count
from .measuring.record import origin, write_record

COUNT, SHAPE = 1440, (16, 4608)
"""As many tensors and numbers as a LoRA of rank 16 on a base of 60 blocks has: 106 million."""

BAR = 0.35
"""Of the time of torch's foreach AdamW: what ours may take."""

ROUNDS = 10


def _parameters(tensors: int, shape: tuple[int, ...]) -> list[torch.nn.Parameter]:
    found = [torch.nn.Parameter(torch.full(shape, 0.5)) for _ in range(tensors)]
    for each in found:
        each.grad = torch.full(shape, 0.1)
    return found


def _views(size: int, tensors: int, shape: tuple[int, ...]) -> list[Tensor]:
    """Parts of one buffer of zeros."""
    return [part.view(shape) for part in torch.zeros(tensors * size).split(size)]


def ways(
    tensors: int = COUNT, shape: tuple[int, ...] = SHAPE
) -> Mapping[str, torch.optim.Optimizer]:
    """Optimizers with gradients in place, by how they update."""
    each = _parameters(tensors, shape)
    size = each[0].numel()
    flat_moments = torch.optim.AdamW(each, 1e-4, fused=True)
    moments = [_views(size, tensors, shape) for _ in range(2)]
    for parameter, mean, square in zip(each, *moments, strict=True):
        state = {"step": torch.tensor(0.0), "exp_avg": mean, "exp_avg_sq": square}
        flat_moments.state[parameter].update(state)
    flat = torch.nn.Parameter(torch.full((tensors * size,), 0.5))
    flat.grad = torch.full((tensors * size,), 0.1)
    return {
        "foreach": torch.optim.AdamW(each, 1e-4, foreach=True),
        "one by one": torch.optim.AdamW(each, 1e-4, foreach=False),
        "ours": make_optimizer(OptimizerSection(), [ParameterGroup(tuple(each))]),
        "flat moments": flat_moments,
        "one flat tensor": torch.optim.AdamW([flat], 1e-4, fused=True),
    }


def measure(rounds: int) -> list[dict[str, Any]]:
    """Time and count a step of each way, with its state in place."""
    torch.set_num_threads(1)
    made = ways()
    seconds: dict[str, list[float]] = {name: [] for name in made}
    for turn in range(rounds + 1):
        for name, optimizer in made.items():
            began = time.process_time()
            optimizer.step()
            if turn:  # the first one makes the state
                seconds[name].append(time.process_time() - began)
    whole = min(seconds["foreach"])
    return [
        {
            "way": name,
            "cpu_ms": round(1000 * min(seconds[name]), 1),
            "of_foreach": round(min(seconds[name]) / whole, 3),
            "operations": count(optimizer.step).dispatched,
        }
        for name, optimizer in made.items()
    ]


def main() -> None:
    """Measure, print, and write the record where one is wanted."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    parser.add_argument("--output", type=Path)
    arguments = parser.parse_args()
    rows = measure(arguments.rounds)
    for row in rows:
        print(*row.values(), sep="\t")
    if arguments.output is not None:
        write_record(arguments.output, {"timed": origin(), "rows": rows})


if __name__ == "__main__":
    main()
