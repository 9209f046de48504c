"""`StreamedBlocks`: blocks whose frozen weights are on the device only while they are used.

A hook before each block's forward call brings its weights, and sends for those of the next block;
there is no other hook. With gradient checkpointing the backward pass calls each block once more
before it reads the block's weights, the last block first, so that the same hook serves it. Autograd
goes backward in the opposite order of the calls: when a block is called again, all that reads
the weights of the blocks behind it has been told to the device, and their slots are free.

A block leaves the device only when another one takes its slot; weights are never copied back. So a
step of S blocks in B slots loads 2 (S - B) blocks: the last B of the forward pass are the first of
the backward pass, and that one ends with the first B of the next step.

Each block has to be checkpointed by itself. Without checkpointing autograd refuses the weights that
it kept, because they were overwritten.

A call of a block with 30 tensors takes 83 calls of Python and 9 microseconds for this
(docs/decisions/0017-block-swap.md).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from ..device import release_memory
from .host_weights import HostBlock, Master, Span, block_spans
from .transfer import Transfer


class Slot:
    """Room for one block, which is taken when the first block needs it.

    Where the device is full then, a step ends as any other does that does not fit, and can be made
    again with more blocks swapped.

    Attributes:
        block: The number of the block whose weights are there or on their way; None: of none.
        ticket: Of the transfer, while nobody has waited for it.
        used: When a block was last asked for, or sent, here.
    """

    __slots__ = ("_bytes", "_device", "_size", "arriving", "block", "ticket", "used")

    def __init__(self, size: int, device: torch.device) -> None:
        self._size, self._device = size, device
        self._bytes: Tensor | None = None
        self.block: int | None = None
        self.ticket: Any = None
        self.arriving = False
        self.used = -1

    @property
    def bytes(self) -> Tensor:
        """`[size]`, uint8, on the device."""
        if self._bytes is None:
            # Made in inference mode, as by a preview, it could not be trained with.
            with torch.inference_mode(False):
                self._bytes = torch.empty(self._size, dtype=torch.uint8, device=self._device)
        return self._bytes


Ring = tuple[Slot, ...]
"""Slots of one size on the device, in which blocks of one layout take turns."""


def slot_of(block: int, ring: Ring) -> Slot | None:
    """The slot that a block is in, or on its way to."""
    for slot in ring:
        if slot.block == block:
            return slot
    return None


def oldest_slot(ring: Ring, spared: Slot | None) -> Slot | None:
    """The slot that was used least recently; None where only the spared one is."""
    found = None
    for slot in ring:
        if slot is not spared and (found is None or slot.used < found.used):
            found = slot
    return found


class StreamedBlocks:
    """Takes blocks off the device until `close`.

    Args:
        blocks: In the order in which they are called, before they have an adapter.
        slots: How many blocks of one layout are on the device at a time.
        every: All blocks that may ever be streamed (`change`), in the order in which they are
            called, and their weights; unset: of ``blocks`` alone.
        held: Some of ``blocks`` that the master has already.

    Attributes:
        loads: How many times a block was sent to the device.

    Raises:
        BaseModelError: When a block has weights that cannot be swapped; nothing is changed then.
        RunError: When the system does not pin memory that has to be pinned.
    """

    def __init__(
        self,
        blocks: Sequence[nn.Module],
        device: torch.device,
        slots: int,
        master: Master,
        transfer: Transfer,
        every: Mapping[nn.Module, tuple[Span, ...]] | None = None,
        held: Mapping[nn.Module, HostBlock] | None = None,
    ) -> None:
        self.loads = 0
        self._device, self._slots = device, slots
        self._master, self._transfer = master, transfer
        self._spans = every or {block: block_spans(block) for block in blocks}
        self._away: dict[nn.Module, HostBlock] = {}
        self._lasting: dict[nn.Module, HostBlock] = {}
        self._held: list[HostBlock] = []
        self._rings: list[Ring] = []
        self._bound: dict[tuple[int, Slot | None], tuple[Tensor, ...]] = {}
        self._now: list[Slot | None] = []
        self._last, self._clock = 0, 0
        self._hooks: list[torch.utils.hooks.RemovableHandle] = []
        try:
            if master.lasting:
                self._lasting = {each: master.hold(spans) for each, spans in self._spans.items()}
            for block in blocks:
                self._take(block, (held or {}).get(block))
            self._start()
        except BaseException:
            self.close()
            raise

    @property
    def count(self) -> int:
        """How many blocks are off the device."""
        return len(self._away)

    @property
    def lasting(self) -> bool:
        """Whether a block that goes takes no memory of the host."""
        return self._master.lasting

    def change(self, blocks: Sequence[nn.Module]) -> None:
        """Stream other blocks than before; only between two steps.

        Blocks go and come in turns, without slots meanwhile, so that neither the device nor the
        host ever has more than one block above the larger of what it had and what it will have.

        Args:
            blocks: Some of ``every``.
        """
        wanted = set(blocks)
        leaving = [each for each in blocks if each not in self._away]
        coming = [each for each in self._away if each not in wanted]
        self._stop()
        try:
            while leaving or coming:
                if leaving:
                    self._take(leaving.pop())
                if coming:
                    self._give(coming.pop())
        finally:
            # What the system refuses halfway leaves every block in one place or the other.
            release_memory(self._device)
            self._start()

    def _take(self, block: nn.Module, held: HostBlock | None = None) -> None:
        """Let a block have its weights on the host."""
        spans = self._spans[block]
        held = held or self._lasting.get(block) or self._master.hold(spans)
        self._away[block] = held
        _bind_all(spans, _bindable(spans, held.tensors, marked=True))

    def _give(self, block: nn.Module) -> None:
        """Let a block have its weights on the device."""
        held = self._away[block]
        if held.mapped is not None:
            held.mapped.require_unchanged()
        room = torch.empty(held.size, dtype=torch.uint8, device=self._device)
        for target, source in held.copies(room):
            target.copy_(source)
        views = tuple(span.view(room) for span in held.spans)
        _bind_all(held.spans, _bindable(held.spans, views, marked=True))
        del self._away[block]
        self._master.drop(held)

    def _start(self) -> None:
        """Give the blocks that are away a ring for each layout, and hooks."""
        streamed = [(block, self._away[block]) for block in self._spans if block in self._away]
        self._held = [held for _, held in streamed]
        self._now = [None] * len(streamed)
        groups: dict[object, list[HostBlock]] = {}
        for held in self._held:
            groups.setdefault(held.layout, []).append(held)
        rings = {
            layout: tuple(
                Slot(same[0].size, self._device) for _ in range(min(self._slots, len(same)))
            )
            for layout, same in groups.items()
        }
        self._rings = [rings[held.layout] for held in self._held]
        for number, (block, _) in enumerate(streamed):
            hook = partial(self._before, number)
            self._hooks.append(block.register_forward_pre_hook(hook, prepend=True))

    def _stop(self) -> None:
        """Take the hooks off, end what is under way, and leave the slots."""
        while self._hooks:
            self._hooks.pop().remove()
        try:
            self._transfer.close()
        finally:
            for number in range(len(self._now)):
                self._bind(number, None)
            self._held, self._rings, self._now, self._last = [], [], [], 0
            self._bound.clear()

    def _before(self, number: int, block: nn.Module, inputs: object) -> None:
        del block, inputs
        self.need(number)

    def need(self, number: int) -> None:
        """Bring a block's weights, and send for those of the block that is likely to be next.

        Args:
            number: Of the block, from 0.
        """
        ring = self._rings[number]
        slot = slot_of(number, ring) or self._send(number, None)
        assert slot is not None
        self._arrive(slot)
        if self._now[number] is not slot:
            self._bind(number, slot)
        slot.used = self._tick()
        following = self._following(number)
        self._last = number
        if 0 <= following < len(self._rings) and slot_of(following, self._rings[following]) is None:
            self._send(following, slot)

    def _following(self, number: int) -> int:
        """Forward or backward; from an end there is only one."""
        last = len(self._rings) - 1
        if number == 0:
            return 1
        if number == last:
            # Where nothing goes backward, as while sampling, a pass follows the other.
            return last - 1 if torch.is_grad_enabled() else 0
        return number + (1 if number > self._last else -1)

    def _send(self, number: int, spared: Slot | None) -> Slot | None:
        slot = oldest_slot(self._rings[number], spared)
        if slot is None:
            return None
        self._arrive(slot)
        if slot.block is not None and self._now[slot.block] is slot:
            self._bind(slot.block, None)
        # Nobody's until the copy is under way: an exception on the way leaves nothing half copied.
        slot.block = None
        held = self._held[number]
        if held.mapped is not None:
            held.mapped.require_unchanged()
        slot.ticket = self._transfer.submit(held.copies(slot.bytes))
        slot.block, slot.arriving, slot.used = number, True, self._tick()
        self.loads += 1
        return slot

    def _arrive(self, slot: Slot) -> None:
        if slot.arriving and slot.block is not None:
            self._transfer.wait(slot.ticket)
            slot.ticket, slot.arriving = None, False
            mapped = self._held[slot.block].mapped
            if mapped is not None:
                mapped.forget()

    def _tick(self) -> int:
        self._clock += 1
        return self._clock

    def _bind(self, number: int, slot: Slot | None) -> None:
        """Let a block have its weights in a slot, or on the host."""
        key = number, slot
        held = self._held[number]
        tensors = self._bound.get(key)
        if tensors is None:
            lying = held.tensors if slot is None else [each.view(slot.bytes) for each in held.spans]
            tensors = self._bound[key] = _bindable(held.spans, lying, marked=True)
        for span, tensor in zip(held.spans, tensors, strict=True):
            span.bind(tensor)
        self._now[number] = slot

    def place_rest(self, module: nn.Module, device: torch.device) -> None:
        """Send everything of a module to a device but the swapped weights.

        Args:
            module: What the blocks are parts of, with or without an adapter.
        """
        kept = {
            id(held[name])
            for block in self._held
            for span in block.spans
            for held, name, _ in span.places
        }
        module._apply(lambda tensor: tensor if id(tensor) in kept else tensor.to(device))
        for spans in self._spans.values():
            for span in spans:
                span.mark(True)
        for block in (*self._held, *self._lasting.values()):
            if block.mapped is not None:
                block.mapped.forget()  # whoever made an adapter may have read the weights

    def close(self) -> None:
        """Take the hooks off, and give the blocks their weights on the host; again does nothing."""
        try:
            self._stop()
        finally:
            # With the identity gone: from now on whoever likes may change them.
            for block, spans in self._spans.items():
                held = self._away.get(block)
                if held is not None:
                    _bind_all(spans, _bindable(spans, held.tensors, marked=False))
                for span in spans:
                    span.mark(False)
            self._spans, self._away, self._lasting = {}, {}, {}
            self._master.close()


def _bindable(
    spans: Sequence[Span], tensors: Sequence[Tensor], *, marked: bool
) -> tuple[Tensor, ...]:
    # Made in inference mode, as by a preview, they could not be trained with.
    with torch.inference_mode(False), torch.no_grad():
        pairs = zip(spans, tensors, strict=True)
        return tuple(span.bindable(tensor, marked) for span, tensor in pairs)


def _bind_all(spans: Sequence[Span], tensors: Sequence[Tensor]) -> None:
    for span, tensor in zip(spans, tensors, strict=True):
        span.bind(tensor)
