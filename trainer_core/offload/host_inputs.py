"""`HostInputs`: the inputs of checkpointed blocks wait in RAM for the backward pass.

While a block computes, what it was called with is copied to RAM; after its call the device's copy
is free. In the backward pass the inputs come back one block ahead of the block that needs them.

What is kept is memory, not tensors: views of one memory, such as the two streams that a block cut
from one tensor, are kept once and come back with the strides that they had, so that a block
computes the same bits. What several blocks are called with is kept once, too.

RAM is taken once for each input of each block and is used again in every step, once all that wrote
or read it is done. It is free as soon as autograd drops the block's graph, in whatever way that
happens: a backward pass, an error, or a cancelled step.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any
from weakref import WeakValueDictionary, ref

import torch
from torch import Tensor, nn
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils.checkpoint import checkpoint

from .pinned_memory import PinnedMemory, whole_pages
from .transfer import Transfer

WORTH = 1 << 20
"""Bytes of an input that is kept in RAM; smaller ones stay on the device."""

Place = tuple[int, int]
"""The block's number, and the position of the input."""


@dataclass(slots=True, eq=False)
class _Slot:
    """RAM for one input.

    Attributes:
        taken: Whether an input is in it.
    """

    bytes: Tensor
    taken: bool = False


@dataclass(slots=True)
class HostArena:
    """RAM that is taken once, and pinned where somebody gives a way to do so.

    Attributes:
        pinned: Pins it; None where nobody reads pinned memory.
        wait: Lets what the device is told from now on see a copy, by its ticket.
        drain: Returns when nobody reads or writes memory any more that is not taken.
        returned: Copies from or into memory that is not taken any more: their tickets, and the
            tensors of the device, which stay until the copy is waited for.
    """

    pinned: PinnedMemory | None = None
    wait: Callable[[Any], object] = lambda ticket: None
    drain: Callable[[], object] = lambda: None
    returned: list[tuple[Any, Tensor]] = field(default_factory=list)
    _slots: dict[Place, list[_Slot]] = field(default_factory=dict)

    @property
    def size(self) -> int:
        """Bytes of it."""
        return sum(slot.bytes.numel() for slots in self._slots.values() for slot in slots)

    def take(self, place: Place, size: int) -> _Slot:
        """Memory of at least so many bytes; whoever has it sets ``taken`` to False at the end."""
        slots = self._slots.setdefault(place, [])
        slot = next((each for each in slots if not each.taken), None)
        while self.returned:  # asked behind the choice: a slot comes back after its copy
            ticket, still_used = self.returned.pop()
            self.wait(ticket)
            del still_used
        if slot is not None and slot.bytes.numel() < size:
            slots.remove(slot)
            # The micro-batch before may have been told to the device, and not computed yet.
            self.drain()
            if self.pinned is not None:
                self.pinned.unpin(slot.bytes)
            slot = None
        if slot is None:
            slot = _Slot(whole_pages(size))
            if self.pinned is not None:
                self.pinned.pin(slot.bytes)
            slots.append(slot)
        slot.taken = True
        return slot

    def close(self) -> None:
        """Give it back."""
        if self.pinned is not None:
            self.pinned.close()
        self._slots.clear()
        self.returned.clear()


class _Kept:
    """The bytes of one memory of the device, in RAM.

    Args:
        slot: Where the bytes go.
        returned: `HostArena.returned`.
    """

    def __init__(
        self, tensor: Tensor, slot: _Slot, transfer: Transfer, returned: list[tuple[Any, Tensor]]
    ) -> None:
        storage = tensor.untyped_storage()
        # As long as this lives no other memory gets the number by which it is found.
        self._known = StorageWeakRef(storage)
        self.version = tensor._version
        self.calls = 0
        self._slot, self._transfer, self._returned = slot, transfer, returned
        self._numbers = storage.nbytes() // tensor.element_size()
        self._dtype, self._device = tensor.dtype, tensor.device
        self._there: Tensor | None = None
        flat = tensor.detach().as_strided((self._numbers,), (1,), 0)
        self._ticket: Any = transfer.submit([(self._host(), flat)])
        self._under_way: Tensor | None = flat

    def _host(self) -> Tensor:
        size = self._numbers * self._dtype.itemsize
        return self._slot.bytes[:size].view(self._dtype)

    def arrive(self) -> None:
        """Let what is told to the device from now on see what was copied last."""
        if self._under_way is not None:
            self._transfer.wait(self._ticket)
            self._ticket, self._under_way = None, None

    def send_back(self) -> None:
        """Begin to copy the bytes to the device, unless they are there."""
        if self._there is None:
            self.arrive()
            self._there = torch.empty(self._numbers, dtype=self._dtype, device=self._device)
            self._ticket = self._transfer.submit([(self._there, self._host())])
            self._under_way = self._there

    def take(self) -> Tensor:
        """The bytes on the device; they stay there only where further blocks need them."""
        self.send_back()
        self.arrive()
        flat = self._there
        assert flat is not None
        if self.calls < 2:
            self._there = None
        return flat

    def __del__(self) -> None:
        # Garbage may be collected in the very thread that copies: here nobody waits. Whoever takes
        # memory next does, so that nobody writes where a copy is still read from, or written to.
        under_way = getattr(self, "_under_way", None)
        if under_way is not None:
            self._returned.append((self._ticket, under_way))
        self._slot.taken = False


class _Call:
    """A checkpointed call of a block: with its inputs, and later with what was kept of them."""

    def __init__(self, inputs: HostInputs, block: nn.Module, number: int, args: Any) -> None:
        self._block = block
        self._args: list[Any] = list(args)
        self._kept: dict[int, tuple[_Kept, Callable[[Tensor], Tensor]]] = {}
        self._first: Any = args
        self._before: ref[_Call] | None = inputs.swap_last(self)
        for position, each in enumerate(args):
            if isinstance(each, Tensor) and inputs.worth(each):
                self._kept[position] = inputs.keep((number, position), each), _remade(each)
                self._args[position] = None
        for kept in self._memories():
            kept.calls += 1

    def _memories(self) -> set[_Kept]:
        return {kept for kept, _ in self._kept.values()}

    def __call__(self, marker: Tensor) -> Any:
        """Call the block."""
        del marker
        first, self._first = self._first, None
        if first is not None:
            result = self._block(*first)
            self._sent(first)
            return result
        there = {id(kept): kept.take() for kept in self._memories()}
        args = list(self._args)
        for position, (kept, remake) in self._kept.items():
            args[position] = remake(there[id(kept)])
        there.clear()
        before = self._before and self._before()
        if before is not None:
            for kept in before._memories():
                kept.send_back()
        return self._block(*args)

    def _sent(self, first: Any) -> None:
        for kept in self._memories():
            kept.arrive()
        for position, (kept, _) in self._kept.items():
            if first[position]._version != kept.version:
                raise RuntimeError(
                    f"{type(self._block).__name__} has written into its input {position}, which "
                    "memory.checkpoint_inputs: ram was copying"
                )


def _remade(tensor: Tensor) -> Callable[[Tensor], Tensor]:
    """How a tensor is made again of its memory."""
    sizes, strides, offset = tensor.size(), tensor.stride(), tensor.storage_offset()
    trained = tensor.requires_grad

    def remake(flat: Tensor) -> Tensor:
        return flat.as_strided(sizes, strides, offset).requires_grad_(trained)

    return remake


class HostInputs:
    """Calls checkpointed blocks, and keeps their inputs in RAM.

    Args:
        worth: Bytes of an input that is kept there.
    """

    def __init__(self, arena: HostArena, transfer: Transfer, worth: int = WORTH) -> None:
        self.arena, self._transfer, self._worth = arena, transfer, worth
        arena.wait, arena.drain = transfer.wait, transfer.drain
        self._known: WeakValueDictionary[tuple[int, torch.dtype], _Kept] = WeakValueDictionary()
        self._last: ref[_Call] | None = None

    def call(self, block: nn.Module, number: int, args: tuple[Any, ...]) -> Any:
        """Call a block; what it computes is computed again in the backward pass.

        Args:
            args: Its inputs; those inside of others, such as a tuple, stay on the device.
        """
        on_device = next((each for each in args if isinstance(each, Tensor)), torch.empty(0))
        # Without a tensor of the device among the inputs, its random state would not be kept.
        marker = on_device.detach().new_empty(0)
        call = _Call(self, block, number, args)
        return checkpoint(call, marker, use_reentrant=False)

    def worth(self, tensor: Tensor) -> bool:
        """Whether a tensor's memory is worth to be kept in RAM."""
        return type(tensor) is Tensor and tensor.untyped_storage().nbytes() >= self._worth

    def keep(self, place: Place, tensor: Tensor) -> _Kept:
        """Keep a tensor's memory, which may be kept already."""
        storage = tensor.untyped_storage()
        key = storage._cdata, tensor.dtype
        known = self._known.get(key)
        if known is None or known.version != tensor._version:
            slot = self.arena.take(place, storage.nbytes())
            known = self._known[key] = _Kept(tensor, slot, self._transfer, self.arena.returned)
        return known

    def swap_last(self, call: _Call) -> ref[_Call] | None:
        """The call before, which is the next one in the backward pass."""
        before, self._last = self._last, ref(call)
        return before

    def close(self) -> None:
        """Give the RAM back when nothing is under way."""
        self._transfer.close()
        self.arena.close()
