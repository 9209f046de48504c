"""Python calls and operations of a training step: what the host does for each adapted layer.

Both are counted, not timed, so that they carry no noise. The small model is like a block of a
transformer: three layers read the same input, as q, k and v do, and three have one of their own.
"""

from __future__ import annotations

import gc
import sys
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from trainer_core.adapters import attach
from trainer_core.config import AdapterConfig

from .counters import count

KINDS: dict[str, dict[str, Any]] = {
    "lora": {"kind": "lora"},
    "loha": {"kind": "loha"},
    "lokr": {"kind": "lokr", "factor": 8},
}
"""The settings of each kind."""

BARS = {"lora": 1.0, "loha": 0.8, "lokr": 0.8}
"""The most that a kind may do for a layer, over what PEFT's layer of that kind does."""

SHARED = (r"(.*\.)?to_[qkv]",)
WIDTH, RANK, TOKENS, BLOCKS = 128, 4, 32, 2
LAYERS = ("to_q", "to_k", "to_v", "to_out", "up", "down")


@dataclass(frozen=True)
class HostWork:
    """What a training step costs the host, for each adapted layer beyond the frozen one.

    Attributes:
        python_calls: Calls of Python functions, forward and backward.
        operations: Operations of torch that wrote something (`counters`).
        dispatched: All operations of torch, views too.
    """

    python_calls: float
    operations: float
    dispatched: float


class _Block(nn.Module):
    """Six Linears, of which three read the same input."""

    def __init__(self) -> None:
        super().__init__()
        self.to_q, self.to_k, self.to_v = (nn.Linear(WIDTH, WIDTH) for _ in range(3))
        self.to_out = nn.Linear(WIDTH, WIDTH)
        self.up, self.down = nn.Linear(WIDTH, 2 * WIDTH), nn.Linear(2 * WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        mixed = self.to_q(x) * self.to_k(x) + self.to_v(x)
        x = x + self.to_out(mixed)
        return x + self.down(self.up(x).relu())


def measure_host_work(dtype: torch.dtype) -> dict[str, dict[str, HostWork]]:
    """Count one training step of the small model with each implementation of each kind.

    Args:
        dtype: Of the frozen weights; all adapters have float32 parameters.

    Returns:
        ``ours``, ``separate`` (ours without a shared input) and ``PEFT``, by kind.
    """
    frozen = _counted(_model(dtype), dtype)
    makers: dict[str, Callable[[str, nn.Module], object]] = {
        "ours": partial(_attach, shared=SHARED),
        "separate": partial(_attach, shared=()),
        "PEFT": _inject_peft,
    }
    found: dict[str, dict[str, HostWork]] = {}
    for kind in KINDS:
        for source, make in makers.items():
            module = _model(dtype)
            kept = make(kind, module)
            layers = BLOCKS * len(LAYERS)
            pairs = zip(_counted(module, dtype), frozen, strict=True)
            work = HostWork(*(round((own - base) / layers, 2) for own, base in pairs))
            found.setdefault(kind, {})[source] = work
            del kept
    return found


def _model(dtype: torch.dtype) -> nn.Module:
    return nn.Sequential(*(_Block() for _ in range(BLOCKS))).to(dtype).requires_grad_(False)


def _attach(kind: str, module: nn.Module, shared: tuple[str, ...]) -> object:
    config = AdapterConfig(rank=RANK, **KINDS[kind])
    adapter = attach(module, config, [rf".*\.({'|'.join(LAYERS)})"], shared=shared)
    return adapter.train()


def _inject_peft(kind: str, module: nn.Module) -> None:
    from peft import LoHaConfig, LoKrConfig, LoraConfig, inject_adapter_in_model

    targets: list[str] = [*LAYERS]
    configs: dict[str, Callable[[], Any]] = {
        "lora": lambda: LoraConfig(r=RANK, lora_alpha=RANK, target_modules=targets),
        "loha": lambda: LoHaConfig(r=RANK, alpha=RANK, target_modules=targets),
        "lokr": lambda: LoKrConfig(r=RANK, alpha=RANK, decompose_factor=8, target_modules=targets),
    }
    inject_adapter_in_model(configs[kind](), module)
    for parameter in module.train().parameters():
        if parameter.requires_grad:
            parameter.data = parameter.data.float()


def _counted(module: nn.Module, dtype: torch.dtype) -> tuple[int, int, int]:
    """What `HostWork` counts, of a step; several go before it, so that all is warm."""
    x = torch.ones(1, TOKENS, WIDTH, dtype=dtype, requires_grad=True)
    gradient = torch.ones_like(x)
    trained = [each for each in module.parameters() if each.requires_grad]

    def step() -> None:
        # As an optimizer leaves them; where there are none, nothing is added to.
        for leaf in (x, *trained):
            leaf.grad = None
        torch.autograd.backward(module(x), gradient)

    for _ in range(3):
        step()
    calls = _python_calls(step)
    operations = count(step)
    return calls, operations.calls, operations.dispatched


def _python_calls(step: Callable[[], object]) -> int:
    """On a CPU, autograd goes backward in the thread that asks for it."""
    calls = 0

    def see(frame: Any, event: str, argument: Any) -> None:
        nonlocal calls
        del frame, argument
        calls += event == "call"

    # A collection in between would call the finalizers of others.
    gc.collect()
    gc.disable()
    before = sys.getprofile()
    sys.setprofile(see)
    try:
        step()
    finally:
        sys.setprofile(before)
        gc.enable()
    return calls
