"""`LiveBytes`: how many bytes of tensors are alive at once, and what they were computed with.

It sees every tensor that torch makes, real or fake, and counts a storage once, from its first
tensor until the last one is gone. What a kernel needs for a moment inside of itself, and what an
allocator keeps between pieces, is not seen.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterable
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.flop_counter import flop_registry, sdpa_backward_flop_count, sdpa_flop_count

_aten = torch.ops.aten
_ATTENTION = _aten._scaled_dot_product_flash_attention_for_cpu
_ATTENTION_BACKWARD = _aten._scaled_dot_product_flash_attention_for_cpu_backward
"""The CPU's attention, of which torch's own table of FLOPs knows nothing."""


class LiveBytes(TorchDispatchMode):
    """Counts while it is entered.

    Attributes:
        now: Bytes that are alive.
        peaks: Most of them in each phase (`begin`).
        flops: Of the products so far; a multiplication with its addition are two.
    """

    def __init__(self, phase: Any = None) -> None:
        super().__init__()
        self.now = 0
        self.flops = 0
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
        self.flops += _flops(func._overloadpacket, args, kwargs or {}, result)
        return result

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


def _flops(operation: Any, args: Any, kwargs: Any, result: Any) -> int:
    if operation is _ATTENTION:
        return sdpa_flop_count(*(each.shape for each in args[:3]))
    if operation is _ATTENTION_BACKWARD:
        return sdpa_backward_flop_count(*(each.shape for each in args[:4]))
    count = flop_registry.get(operation)
    return 0 if count is None else count(*args, **kwargs, out_val=result)
