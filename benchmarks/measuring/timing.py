"""Times as ratios to the frozen Linear, each taken right beside it.

A busy machine slows neighbours alike. So every timed step has a frozen step just before it, the
ratio is taken of the two, and rounds go through all implementations in turn. The figure is the
median over rounds; fastest over fastest says what a quiet moment gave.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from .recipes import Adapted, as_if_updated

MODES = {"cpu": ("eager",), "cuda": ("eager", "compiled", "graphed")}
"""How a layer is run on a device; the last two wait for a GPU, where launches cost."""

_REPEATS = {"cpu": 1, "cuda": 20}
"""Steps in one timing; on a GPU enough to keep its queue full."""

_WARM_UP = 3


@dataclass(frozen=True)
class Ratio:
    """A time over the frozen one.

    Attributes:
        median: Over rounds.
        best: Fastest over fastest.
        failure: Why there is none; the numbers are not to be read then.
    """

    median: float = 0.0
    best: float = 0.0
    failure: str = ""


@dataclass(frozen=True)
class Batch:
    """What goes in at both ends.

    Attributes:
        x: The input, which takes a gradient.
        gradient: The output's gradient.
    """

    x: Tensor
    gradient: Tensor

    @classmethod
    def draw(cls, tokens: int, inputs: int, outputs: int, dtype: torch.dtype, device: str) -> Batch:
        """Make a batch of `tokens` rows."""
        generator = torch.Generator().manual_seed(3)
        x = torch.randn(tokens, inputs, generator=generator).to(device, dtype)
        gradient = torch.randn(tokens, outputs, generator=generator).to(device, dtype)
        return cls(x.requires_grad_(True), gradient)

    def through(self, adapted: Adapted) -> Callable[[], object]:
        """One forward and backward pass, as after an optimizer step."""
        leaves = [self.x, *adapted.parameters]

        def step() -> object:
            as_if_updated(adapted.parameters)
            return torch.autograd.grad(adapted.forward(self.x), leaves, self.gradient)

        return step


def frozen_step(linear: nn.Linear) -> Adapted:
    """The limit: forward and the input's gradient, nothing to train."""
    return Adapted(linear, [], linear)


def eager_ratios(
    steps: Sequence[Callable[[], object]], frozen: Callable[[], object], rounds: int, device: str
) -> list[Ratio]:
    """Time all steps in turn, each beside a frozen one."""
    times: list[list[tuple[float, float]]] = [[] for _ in steps]
    for _ in range(rounds):
        for step, found in zip(steps, times, strict=True):
            limit = _timed(frozen, device)
            found.append((_timed(step, device), limit))
    return [_ratio(found) for found in times]


def mode_ratio(mode: str, adapted: Adapted, frozen: Adapted, batch: Batch, rounds: int) -> Ratio:
    """Time one implementation beside the frozen Linear, both compiled or both as CUDA graphs."""
    prepare = _compiled if mode == "compiled" else _graphed
    # Each has the compiler for itself: code that many layers share would be compiled for each of
    # them, and beyond a limit not at all.
    torch.compiler.reset()
    try:
        steps = [prepare(each, batch) for each in (adapted, frozen)]
        return eager_ratios(steps[:1], steps[1], rounds, batch.x.device.type)[0]
    except (RuntimeError, NotImplementedError) as error:
        return Ratio(failure=str(error).partition("\n")[0][:200])


def _compiled(adapted: Adapted, batch: Batch) -> Callable[[], object]:
    forward = torch.compile(adapted.forward)
    step = batch.through(Adapted(forward, adapted.parameters, adapted.linear))
    for _ in range(_WARM_UP):
        step()
    return step


def _graphed(adapted: Adapted, batch: Batch) -> Callable[[], object]:
    step = batch.through(adapted)
    aside = torch.cuda.Stream()
    aside.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(aside):
        for _ in range(_WARM_UP):
            step()
    torch.cuda.current_stream().wait_stream(aside)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        kept = step()

    def replay() -> object:
        graph.replay()
        return kept

    return replay


def _timed(step: Callable[[], object], device: str) -> float:
    _wait(device)
    started = time.perf_counter()
    for _ in range(_REPEATS[device]):
        step()
    _wait(device)
    return time.perf_counter() - started


def _wait(device: str) -> None:
    if device == "cuda":
        torch.cuda.synchronize()


def _ratio(pairs: list[tuple[float, float]]) -> Ratio:
    median = statistics.median(own / limit for own, limit in pairs)
    best = min(own for own, _ in pairs) / min(limit for _, limit in pairs)
    return Ratio(round(median, 3), round(best, 3))
