"""Copies between RAM and the device: on a stream of their own, or in turn."""

from __future__ import annotations

from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import torch

from ..device import made_current
from .host_weights import Copies


class Transfer:
    """Copies blocks to the device, and their inputs to RAM and back.

    Whoever submits into some memory, or from it, waits before that memory is submitted into again,
    so that transfers may finish in any order. This one copies in turn with everything else: for the
    CPU, and accelerators without side streams.
    """

    def submit(self, copies: Copies) -> Any:
        """Begin to copy, after everything that the device was told so far; gives a ticket."""
        for target, source in copies:
            target.copy_(source)

    def wait(self, ticket: Any) -> None:
        """Let what the device is told from now on see what was copied."""

    def drain(self) -> None:
        """Return when the device is done with what was waited for: that memory may go now."""

    def close(self) -> None:
        """Return when nothing is under way any more; afterwards it may be used again."""


class CudaTransfer(Transfer):
    """Copies on a side stream while the blocks before compute.

    From memory that is not pinned CUDA copies only when all before is done, while the caller waits.
    So one thread waits there, and computing can be told to the device meanwhile.

    Args:
        device: A CUDA device.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._stream = torch.cuda.Stream(device)
        self._waiting = ThreadPoolExecutor(1, "block-swap")  # it starts when it is needed

    def submit(self, copies: Copies) -> Any:
        """Queue the copies behind what computes with the slot's last block."""
        # The calls of the block before have been issued, those of the next one have not, so that
        # its computing hides the copy.
        before = torch.cuda.current_stream(self._device).record_event()
        host = (each for pair in copies for each in pair if each.device.type == "cpu")
        if all(each.is_pinned() for each in host):
            return self._copy(copies, before)
        return self._waiting.submit(self._copy, copies, before)

    def _copy(self, copies: Copies, before: Any) -> Any:
        # A stream of another device than the current one would leave that one's context behind.
        with made_current(self._device), torch.cuda.stream(self._stream):
            self._stream.wait_event(before)
            for target, source in copies:
                target.copy_(source, non_blocking=True)
            return self._stream.record_event()

    def wait(self, ticket: Any) -> None:
        """Let the present stream wait; the host waits only for the thread."""
        done = ticket.result() if isinstance(ticket, Future) else ticket
        torch.cuda.current_stream(self._device).wait_event(done)

    def drain(self) -> None:
        """Wait for the stream: `wait` lets the present one wait, and the host goes on at once."""
        self._stream.synchronize()

    def close(self) -> None:
        """Wait for thread and stream: slots and pinned memory are given back after it."""
        self._waiting.shutdown(cancel_futures=True)
        self._waiting = ThreadPoolExecutor(1, "block-swap")
        self._stream.synchronize()


def make_transfer(device: torch.device) -> Transfer:
    """The fastest one that a device has."""
    return CudaTransfer(device) if device.type == "cuda" else Transfer()
