"""Time and counters of a training step on the embedded base, as ratios in one run.

Every implementation computes the same micro-batch on the same base: forward, backward, AdamW.
"frozen" is the limit that no adapter can beat: forward and the gradient of the input alone. The
plain loop is Diffusers' model with PEFT's own layers, as its documentation wires them.

Rounds go through all implementations in turn, so that a busy machine slows them alike; a ratio is
the median over rounds of a step's time over the frozen step of the same round.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from benchmarks.measuring.counters import count
from benchmarks.measuring.record import origin, write_record
from trainer_core.adapters import attach
from trainer_core.bases.locate import locate_base
from trainer_core.config import AdapterConfig, BaseSection
from trainer_core.counters import counter_seed
from trainer_core.families.family import Family
from trainer_core.families.registry import get_family
from trainer_core.weights.base_location import BaseLocation

KINDS = ("lora", "loha", "lokr")
RANK = 16
BATCH = 16
TEXT_TOKENS = 16


@dataclass(frozen=True)
class Row:
    """One implementation's figures; times and FLOPs are over the frozen step's.

    Attributes:
        name: What was measured.
        time_ratio: Median over rounds.
        best_ratio: Fastest step over fastest frozen step.
        flop_ratio: Matmul FLOPs of forward and backward, without attention's own products.
        saved_mib: Bytes kept for the backward pass, in MiB, without parameters.
        parameters: Trainable ones.
    """

    name: str
    time_ratio: float
    best_ratio: float
    flop_ratio: float
    saved_mib: float
    parameters: int


@dataclass(frozen=True)
class Candidate:
    """One implementation, ready to step."""

    name: str
    forward: Callable[[], Tensor]
    update: Callable[[], None]
    parameters: int
    transformer: nn.Module

    def step(self) -> None:
        """Make one step."""
        self.forward().backward()
        self.update()


class Workload:
    """The micro-batch that everybody computes, and fresh copies of the base.

    Args:
        family: The family of the embedded base.
        location: The embedded base.
    """

    def __init__(self, family: Family, location: BaseLocation) -> None:
        self._family, self._location = family, location
        shape = family.latent_shape(location, 64, 64)
        generator = torch.Generator().manual_seed(counter_seed(0, "bench"))
        self.noisy = torch.randn((BATCH, *shape), generator=generator)
        self.target = torch.randn((BATCH, *shape), generator=generator)
        self.sigma = torch.rand(BATCH, generator=generator)
        base: Any = self.base()
        width = int(base.config["joint_attention_dim"])
        text = torch.randn((TEXT_TOKENS, width), generator=generator)
        self.conditionings = [{"text_embeddings": text}] * BATCH

    def base(self) -> nn.Module:
        """Load the frozen denoiser again."""
        return self._family.load_transformer(self._location, torch.float32, "cpu")

    def loss(self, transformer: nn.Module, noisy: Tensor | None = None) -> Tensor:
        """Mean squared error of the velocity."""
        noisy = self.noisy if noisy is None else noisy
        velocity = self._family.prediction.predict(
            transformer, noisy, self.sigma, self.conditionings, (), 1.0
        )
        return torch.nn.functional.mse_loss(velocity, self.target)

    def candidates(self) -> list[Candidate]:
        """Build the frozen limit, our kinds and PEFT's."""
        presets, base = self._family.layers.presets, self.base()
        targets = [
            name
            for name, module in base.named_modules()
            if isinstance(module, nn.Linear) and name.startswith("transformer_blocks.")
        ]
        built = [self._frozen(base)]
        for kind in KINDS:
            module = self.base()
            config = AdapterConfig(kind=kind, rank=RANK)
            chosen = {name: module.get_submodule(name) for name in targets}
            shared = self._family.layers.shared_inputs
            adapter = attach(module, config, chosen, presets=presets, shared=shared)
            adapter.train()
            built.append(self._trained(f"ours {kind}", module, adapter.parameters()))
        for kind in KINDS:
            module = self.base()
            built.append(self._trained(f"PEFT {kind}", module, _peft(module, kind, targets)))
        return built

    def _frozen(self, module: nn.Module) -> Candidate:
        def forward() -> Tensor:
            return self.loss(module, self.noisy.clone().requires_grad_())

        return Candidate("frozen", forward, lambda: None, 0, module)

    def _trained(self, name: str, module: nn.Module, parameters: list[nn.Parameter]) -> Candidate:
        optimizer = torch.optim.AdamW(parameters, lr=1e-4)

        def update() -> None:
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)

        count = sum(parameter.numel() for parameter in parameters)
        return Candidate(name, lambda: self.loss(module), update, count, module)


def measure(candidates: list[Candidate], rounds: int) -> list[Row]:
    """Measure all implementations in turn.

    Args:
        candidates: The first is the frozen limit.
        rounds: Timed rounds, after two that warm up.

    Returns:
        One row for each, in order.
    """
    times: dict[str, list[float]] = {candidate.name: [] for candidate in candidates}
    for number in range(rounds + 2):
        for candidate in candidates:
            started = time.perf_counter()
            candidate.step()
            if number >= 2:
                times[candidate.name].append(time.perf_counter() - started)
    limit = times[candidates[0].name]
    flops = {candidate.name: _flops(candidate) for candidate in candidates}
    return [
        Row(
            name=c.name,
            time_ratio=round(
                statistics.median(a / b for a, b in zip(times[c.name], limit, strict=True)), 3
            ),
            best_ratio=round(min(times[c.name]) / min(limit), 3),
            flop_ratio=round(flops[c.name] / flops[candidates[0].name], 3),
            saved_mib=round(_saved_bytes(c) / 2**20, 2),
            parameters=c.parameters,
        )
        for c in candidates
    ]


def _peft(module: nn.Module, kind: str, targets: list[str]) -> list[nn.Parameter]:
    from peft import LoHaConfig, LoKrConfig, LoraConfig, inject_adapter_in_model

    configs = {
        "lora": LoraConfig(r=RANK, lora_alpha=RANK, target_modules=targets),
        "loha": LoHaConfig(r=RANK, alpha=RANK, target_modules=targets),
        "lokr": LoKrConfig(r=RANK, alpha=RANK, target_modules=targets),
    }
    inject_adapter_in_model(configs[kind], module)
    module.train()
    return [parameter for parameter in module.parameters() if parameter.requires_grad]


def _flops(candidate: Candidate) -> int:
    # torch's own counter passes over products that are added in place.
    return count(candidate.step).flops


def _saved_bytes(candidate: Candidate) -> int:
    owned = {tensor.data_ptr() for tensor in candidate.transformer.parameters()}
    kept: dict[int, int] = {}

    def pack(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in owned:
            kept[storage.data_ptr()] = storage.nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        loss = candidate.forward()
    total = sum(kept.values())
    del loss
    return total


def main() -> None:
    """Measure, print the table and write it as JSON."""
    parser = argparse.ArgumentParser(description="Time of a training step on the embedded base.")
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--output", type=Path)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    found = origin()
    family = get_family("qwen_image")
    location = locate_base(BaseSection(), get_family("qwen_image"), has_controls=False)
    rows = measure(Workload(family, location).candidates(), arguments.rounds)
    heads = ("time", "best", "FLOPs", "saved MiB", "parameters")
    print("step on the embedded base".ljust(28) + "".join(head.rjust(11) for head in heads))
    for row in rows:
        print(
            f"{row.name:28}{row.time_ratio:11.3f}{row.best_ratio:11.3f}{row.flop_ratio:11.3f}"
            f"{row.saved_mib:11.2f}{row.parameters:11d}"
        )
    if arguments.output:
        measured = {**found, "rounds": arguments.rounds}
        record = {
            "benchmark": "step_time",
            "batch_size": BATCH,
            "rank": RANK,
            "counted": measured,
            "timed": measured,
            "rows": [asdict(row) for row in rows],
        }
        write_record(arguments.output, record)


if __name__ == "__main__":
    main()
