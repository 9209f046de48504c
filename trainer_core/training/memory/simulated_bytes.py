"""What a simulated step has in memory and computes: `LiveBytes` counts, `Marks` notes by block.

`LiveBytes` sees every tensor that torch makes, real or fake, and counts a storage once, from its
first tensor until the last one is gone. What a kernel needs for a moment inside of itself, and what
an allocator keeps between pieces, is not seen.
"""

from __future__ import annotations

import weakref
from collections import Counter
from collections.abc import Iterable
from dataclasses import fields
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.flop_counter import flop_registry, sdpa_backward_flop_count, sdpa_flop_count

from ...offload.step_profile import Work

_aten = torch.ops.aten
_ATTENTION = _aten._scaled_dot_product_flash_attention_for_cpu
_ATTENTION_BACKWARD = _aten._scaled_dot_product_flash_attention_for_cpu_backward
"""The CPU's attention, of which torch's own table of FLOPs knows nothing."""

_QUIET = frozenset(
    getattr(_aten, name)
    for name in ("empty", "empty_like", "empty_strided", "new_empty", "new_empty_strided", "detach")
) | {_aten._unsafe_view}
"""What launches no kernel beside views."""

_COPIES = (_aten._to_copy, _aten.copy_)
"""What mixes number formats as fast as it copies; torch's other kernels then read one number at a
time."""

_PRODUCTS = {
    **{getattr(_aten, f"{each.__name__}_", None): count for each, count in flop_registry.items()},
    **flop_registry,
    _aten._int_mm: flop_registry[_aten.mm],
}
"""What counts the FLOPs of each product: torch's own table knows none that adds in place, nor of
whole numbers."""


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


WORK = tuple(each.name for each in fields(Work))

ADAPTER = Phase("adapter")
"""Of a whole step: bytes of the adapter with all that belongs to it."""

STEP_WORK = tuple(Phase(f"step_{name}") for name in WORK)
"""Of a whole step: `Work`."""

Numbers = dict[Phase, int]
"""What a step takes: the peak of each phase, in bytes beside the base; what `Marks` noted; and
`ADAPTER` and `STEP_WORK`."""


class LiveBytes(TorchDispatchMode):
    """Counts while it is entered.

    Attributes:
        now: Bytes that are alive.
        peaks: Most of them in each phase (`begin`).
        work: What was computed so far.
    """

    def __init__(self, phase: Any = None) -> None:
        super().__init__()
        self.now = 0
        self.work = Work()
        self.peaks: dict[Any, int] = {phase: 0}
        self._phase = phase
        self._held: dict[int, tuple[weakref.ref[Any], int]] = {}

    def begin(self, phase: Any) -> None:
        """Begin a phase, or go on with one."""
        self._phase = phase
        self.peaks[phase] = max(self.peaks.get(phase, 0), self.now)

    def hold(self, tensors: Iterable[Tensor]) -> int:
        """Count tensors that were there before; gives the bytes that they add."""
        before = self.now
        for tensor in tensors:
            self._count(tensor)
        return self.now - before

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run an operation and count what it made."""
        result = func(*args, **(kwargs or {}))
        for each in tree_leaves(result):
            if isinstance(each, Tensor):
                self._count(each)
        if not func.is_view:
            self.work += _work(func, args, kwargs or {}, result)
        return result

    @property
    def flops(self) -> int:
        """Those of all products, attention's too."""
        return self.work.flops + self.work.attention

    def _count(self, tensor: Tensor) -> None:
        storage = tensor.untyped_storage()
        key = storage._cdata
        if key in self._held:
            return
        size = storage.nbytes()
        self._held[key] = weakref.ref(storage, partial(self._drop, key)), size
        self.now += size
        self.peaks[self._phase] = max(self.peaks[self._phase], self.now)

    def _drop(self, key: int, gone: object) -> None:
        del gone
        self.now -= self._held.pop(key)[1]


def _work(func: Any, args: Any, kwargs: Any, result: Any) -> Work:
    operation = func._overloadpacket
    if operation is _ATTENTION:
        return Work(attention=sdpa_flop_count(*(each.shape for each in args[:3])), launches=1)
    if operation is _ATTENTION_BACKWARD:
        flops = sdpa_backward_flop_count(*(each.shape for each in args[:4]))
        return Work(attention=flops, launches=1)
    count = _PRODUCTS.get(operation)
    if count is not None:
        return Work(count(*args, **kwargs, out_val=result), launches=1)
    made = [each for each in tree_leaves(result) if isinstance(each, Tensor)]
    if operation in _QUIET or not (made or func._schema.is_mutable):
        return Work()
    inputs = args, {name: each for name, each in kwargs.items() if name != "out"}
    read = [each for each in tree_leaves(inputs) if isinstance(each, Tensor)]
    formats = {each.dtype for each in (*read, *made) if each.dim()}
    size = sum(each.nbytes for each in (*read, *made))
    if len(formats) > 1 and operation not in _COPIES:
        return Work(launches=1, converted=size)
    return Work(moved=size, launches=1)


class Marks:
    """What waits for the backward pass when a block is called, and the work so far."""

    def __init__(self) -> None:
        self._noted: dict[Phase, tuple[int, Work]] = {}
        # An address would be given to another memory when its own is gone.
        self._inputs: dict[Phase, dict[StorageWeakRef, int]] = {}

    def note(self, where: Phase, live: LiveBytes, inputs: tuple[object, ...]) -> None:
        """Note what there is when a block is called, or behind the last one.

        Inputs that are gone by then, as of blocks that no gradient reaches, wait for nothing.
        """
        self._noted[where] = live.now, live.work
        memories = [each.untyped_storage() for each in inputs if isinstance(each, Tensor)]
        if where.group < 0:
            for held in self._inputs.values():
                for memory in [each for each in held if each.expired()]:
                    del held[memory]
        self._inputs[where] = {StorageWeakRef(each): each.nbytes() for each in memories}

    def numbers(self, worth: int) -> dict[Phase, int]:
        """By phase: bytes that wait, work, and bytes of inputs that one block alone has."""
        users = Counter(memory for inputs in self._inputs.values() for memory in inputs)
        found: dict[Phase, int] = {}
        for where, (waiting, work) in self._noted.items():
            inputs = self._inputs[where].items()
            alone = [size for each, size in inputs if users[each] == 1 and size >= worth]
            found[where._replace(what="waiting")] = waiting
            found |= {where._replace(what=name): getattr(work, name) for name in WORK}
            found[where._replace(what="inputs")] = sum(alone)
        return found


def watch_blocks(block: nn.Module, live: LiveBytes, marks: Marks, where: Phase) -> None:
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
