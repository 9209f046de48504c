"""Landmarks of a simulated step: which part of it runs, and what there is at each block."""

from __future__ import annotations

from collections import Counter
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.multiprocessing.reductions import StorageWeakRef

from .live_bytes import LiveBytes


class Phase(NamedTuple):
    """A part of a step: of a block, or outside of blocks.

    Attributes:
        what: ``forward`` and ``backward`` of a block; else ``begin``, ``end`` or ``update``. Also
            what `Marks` notes.
        group: Which list of blocks.
        block: Which of them; below 0 it is counted from the end.
    """

    what: str
    group: int = -1
    block: int = 0


class Marks:
    """What waits for the backward pass when a block is called, and the products so far."""

    def __init__(self) -> None:
        self._noted: dict[Phase, tuple[int, int]] = {}
        # An address would be given to another memory when its own is gone.
        self._inputs: dict[Phase, dict[StorageWeakRef, int]] = {}

    def note(self, where: Phase, live: LiveBytes, inputs: tuple[object, ...]) -> None:
        """Note what there is when a block is called, or behind the last one.

        Inputs that are gone by then, as of blocks that no gradient reaches, wait for nothing.
        """
        self._noted[where] = live.now, live.flops
        memories = [each.untyped_storage() for each in inputs if isinstance(each, Tensor)]
        if where.group < 0:
            for held in self._inputs.values():
                for memory in [each for each in held if each.expired()]:
                    del held[memory]
        self._inputs[where] = {StorageWeakRef(each): each.nbytes() for each in memories}

    def numbers(self, worth: int) -> dict[Phase, int]:
        """By phase: bytes that wait, products, and bytes of inputs that one block alone has."""
        users = Counter(memory for inputs in self._inputs.values() for memory in inputs)
        found: dict[Phase, int] = {}
        for where, (waiting, flops) in self._noted.items():
            alone = [
                size
                for memory, size in self._inputs[where].items()
                if users[memory] == 1 and size >= worth
            ]
            found[where._replace(what="waiting")] = waiting
            found[where._replace(what="flops")] = flops
            found[where._replace(what="inputs")] = sum(alone)
        return found


def watch(block: nn.Module, live: LiveBytes, marks: Marks, where: Phase) -> None:
    """Tell when the forward pass comes to a block, and when the backward pass does."""
    forward, backward = (where._replace(what=what) for what in ("forward", "backward"))

    def enter(module: nn.Module, inputs: tuple[object, ...]) -> None:
        del module
        # In a backward pass it is called to compute its activations again.
        if torch._C._current_graph_task_id() < 0:
            live.begin(forward)
            marks.note(where, live, inputs)

    def leave(module: nn.Module, args: object, output: Any) -> None:
        del module, args
        if torch._C._current_graph_task_id() < 0:
            for each in output if isinstance(output, tuple) else (output,):
                if isinstance(each, Tensor) and each.requires_grad:
                    each.register_hook(partial(_begin, live, backward))

    block.register_forward_pre_hook(enter)
    block.register_forward_hook(leave)


def _begin(live: LiveBytes, phase: Phase, gradient: Tensor) -> None:
    del gradient
    live.begin(phase)
