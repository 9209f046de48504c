"""How a block's bytes come to the device: on a stream of their own, or in turn."""

from __future__ import annotations

from typing import Any, Protocol

import torch

from .host_weights import Copies


class Transfer(Protocol):
    """Copies blocks to the device.

    A ring waits for what it has submitted into a slot before it submits into that slot again, so
    that transfers may finish in any order.
    """

    def submit(self, copies: Copies) -> Any:
        """Begin to copy, after everything that the device was told so far; gives a ticket."""

    def wait(self, ticket: Any) -> None:
        """Let what the device is told from now on see what was copied."""

    def close(self) -> None:
        """Return when nothing is under way any more."""


class PlainTransfer:
    """Copies in turn with everything else: for the CPU, and accelerators without side streams."""

    def submit(self, copies: Copies) -> None:
        """Copy."""
        for target, source in copies:
            target.copy_(source)

    def wait(self, ticket: None) -> None:
        """Do nothing: it is done."""

    def close(self) -> None:
        """Do nothing: nothing is under way."""


class CudaTransfer:
    """Copies on a side stream while the blocks before compute.

    Args:
        device: A CUDA device.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._stream = torch.cuda.Stream(device)

    def submit(self, copies: Copies) -> Any:
        """Queue the copies behind what computes with the slot's last block."""
        # An event at this moment: the calls of the block before have been issued, those of the
        # next one have not, so that its computing hides the copy.
        self._stream.wait_stream(torch.cuda.current_stream(self._device))
        with torch.cuda.stream(self._stream):
            for target, source in copies:
                # From memory that is not pinned this returns when the bytes were read.
                target.copy_(source, non_blocking=True)
            return self._stream.record_event()

    def wait(self, ticket: Any) -> None:
        """Let the present stream wait; the host does not."""
        torch.cuda.current_stream(self._device).wait_event(ticket)

    def close(self) -> None:
        """Wait for the side stream: slots and pinned memory are given back after it."""
        self._stream.synchronize()


def make_transfer(device: torch.device) -> Transfer:
    """The fastest one that a device has."""
    return CudaTransfer(device) if device.type == "cuda" else PlainTransfer()
