"""Counters of what a piece of torch code does; they carry no noise."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from math import prod
from typing import Any

import torch
from torch import Tensor
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import sdpa_backward_flop_count, sdpa_flop_count

_PRODUCTS = {"mm": (0, 1), "bmm": (0, 1), "addmm": (1, 2), "addmm_": (1, 2)} | {
    "baddbmm": (1, 2),
    "baddbmm_": (1, 2),
}
"""Matrix products, and which of their arguments are multiplied."""

_UNWRITTEN = ("detach", "empty", "empty_like", "new_empty")
"""Operations whose results nobody has written to yet."""

_ATTENTION = {
    "_scaled_dot_product_flash_attention_for_cpu": (sdpa_flop_count, 3),
    "_scaled_dot_product_flash_attention_for_cpu_backward": (sdpa_backward_flop_count, 4),
}
"""How torch counts attention, and from the shapes of how many arguments."""


class Operations(TorchDispatchMode):
    """Counts operations, the bytes that they write, and the FLOPs of matrix products.

    Attributes:
        calls: Operations that wrote something.
        dispatched: All operations, also those that only make a view.
        written: Bytes of their results; a result that only views its argument is not written.
        flops: Two for each multiplication of a matrix product.
    """

    def __init__(self) -> None:
        super().__init__()
        self.calls, self.dispatched, self.written, self.flops = 0, 0, 0, 0

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        """Run an operation and count it."""
        del types
        result = func(*args, **(kwargs or {}))
        self.dispatched += 1
        name = func.overloadpacket.__name__
        if name in _PRODUCTS:
            left, right = (args[index] for index in _PRODUCTS[name])
            self.flops += 2 * prod(left.shape) * right.shape[-1]
        if not func.is_view and name not in _UNWRITTEN:
            results = (each for each in _tensors(result) if each.numel())
            outputs = [each for each in results if not _is_view_of(each, args, func)]
            if outputs:
                self.calls += 1
                self.written += sum(each.numel() * each.element_size() for each in outputs)
        return result


class Products(Operations):
    """Counts the FLOPs of attention on a CPU, too."""

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        """Run an operation and count it."""
        result = super().__torch_dispatch__(func, types, args, kwargs)
        counted = _ATTENTION.get(func.overloadpacket.__name__)
        if counted is not None:
            flops, tensors = counted
            self.flops += flops(*(each.shape for each in args[:tensors]))
        return result


def _tensors(value: Any) -> Iterator[Tensor]:
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, (tuple, list)):
        for each in value:
            yield from _tensors(each)


def _is_view_of(result: Tensor, arguments: Iterable[Any], func: Any) -> bool:
    """Whether an operation that is free to return its argument did so, as ``contiguous`` may."""
    if func._schema.is_mutable:
        return False
    same = (each for each in _tensors(tuple(arguments)) if each.device == result.device)
    return any(_address(each) == _address(result) for each in same)


@dataclass
class Saved:
    """Storages that autograd keeps for the backward pass.

    Attributes:
        sizes: Storage address to its size in bytes.
    """

    sizes: dict[int, int] = field(default_factory=dict)

    @property
    def bytes(self) -> int:
        """Of all storages, each counted once."""
        return sum(self.sizes.values())


@contextmanager
def saved_bytes(ignored: Iterable[Tensor]) -> Iterator[Saved]:
    """Record what is kept for the backward pass, except these tensors' own storages."""
    known = {_address(each) for each in ignored}
    saved = Saved()

    def pack(tensor: Tensor) -> Tensor:
        if _address(tensor) not in known:
            saved.sizes[_address(tensor)] = tensor.untyped_storage().nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        yield saved


class Peak(TorchDispatchMode):
    """The most bytes of results that live at once after any operation of a piece of code.

    Memory that an operation takes and gives back inside itself is not seen.

    Attributes:
        bytes: At the worst moment; what lived before is not counted.
    """

    def __init__(self) -> None:
        super().__init__()
        self.bytes = 0
        self._living: dict[int, tuple[StorageWeakRef, int]] = {}

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        """Run an operation and look at what lives after it."""
        del types
        given = {_address(each) for each in _tensors(args)}
        result = func(*args, **(kwargs or {}))
        self._living = {a: pair for a, pair in self._living.items() if not pair[0].expired()}
        for each in _tensors(result):
            storage = each.untyped_storage()
            if _address(each) not in given:
                reference = StorageWeakRef(storage)
                self._living[_address(each)] = (reference, storage.nbytes())
        self.bytes = max(self.bytes, sum(size for _, size in self._living.values()))
        return result


def _address(tensor: Tensor) -> int:
    return tensor.untyped_storage()._cdata


def count(step: Callable[[], object]) -> Operations:
    """Count the operations of one call."""
    with Operations() as operations:
        step()
    return operations


__all__ = ["Operations", "Peak", "Products", "Saved", "count", "saved_bytes"]
