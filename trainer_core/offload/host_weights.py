"""Where the frozen weights of swapped blocks lie: in RAM, pinned or not, or in a mapped file.

What is moved are the bytes as they are stored: the number format of a tensor is of no concern here.
What was read of a mapped file counts as this process's memory until the system is short of it, so
its pages are given back (`mapped_pages`): a base that is read in each step would count as a whole.
"""

from __future__ import annotations

import ctypes
import mmap
import sys
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from ..errors import BaseModelError, RunError
from ..filesystem.text_files import read_lines
from .machine import Machine
from .pinned_memory import PinnedMemory, whole_pages

_MAPS = Path("/proc/self/maps")
_DONTNEED = 4
"""``MADV_DONTNEED`` of Linux: read again from the file when it is asked for again."""


class _Mark(NamedTuple):
    """What says whether a file is still the one that was mapped, and has the same bytes."""

    number: int
    size: int
    changed: int

    @classmethod
    def of(cls, path: str) -> _Mark | None:
        try:
            found = Path(path).stat()
        except OSError:
            return None
        return cls(found.st_ino, found.st_size, found.st_mtime_ns)


class MappedPages(NamedTuple):
    """Memory that files are mapped to, and to which nobody writes.

    Attributes:
        ranges: First address, and the one behind the last, of each tensor.
        files: The files, as they were.
    """

    ranges: tuple[tuple[int, int], ...]
    files: dict[str, _Mark]

    @property
    def size(self) -> int:
        """Bytes of the tensors."""
        return sum(stop - start for start, stop in self.ranges)

    def require_unchanged(self) -> None:
        """See whether the files still have the bytes that were mapped.

        Raises:
            BaseModelError: When somebody has written to one. Another file in its place, or none,
                does no harm: the mapping keeps what it was made of.
        """
        for path, before in self.files.items():
            now = _Mark.of(path)
            if now is not None and now.number == before.number and now != before:
                raise BaseModelError(
                    f"{path} was written to while blocks are read from it (memory.master is file)",
                    "a base's file that stays as it is until the run has ended",
                    "Put the file back as it was, then go on with resume=latest.",
                )

    def forget(self) -> None:
        """Give the memory back to the system; the next reader gets the same bytes from the file."""
        madvise = ctypes.CDLL(None).madvise
        for start, stop in self.ranges:
            first = start - start % mmap.PAGESIZE
            madvise(ctypes.c_void_p(first), ctypes.c_size_t(stop - first), _DONTNEED)


def mapped_pages(tensors: Sequence[Tensor]) -> MappedPages | None:
    """The memory of those tensors that lie in mapped files, whatever these are called.

    The system has the names behind all links, which in a hub's cache are digests without an ending.

    Args:
        tensors: On the CPU.

    Returns:
        None where the system does not tell: elsewhere than on Linux.
    """
    if not sys.platform.startswith("linux") or not _MAPS.exists():
        return None
    mappings: list[tuple[int, int, str]] = []
    for line in read_lines(_MAPS):
        place, *_, path = line.split(maxsplit=5)
        if path.startswith("/"):
            first, last = place.split("-")
            mappings.append((int(first, 16), int(last, 16), path))
    ranges, paths = [], set()
    for tensor in tensors:
        start, stop = tensor.data_ptr(), tensor.data_ptr() + tensor.nbytes
        inside = [path for first, last, path in mappings if first <= start and stop <= last]
        # What is called after a device, or after no file, has its bytes nowhere else.
        if inside and tensor.nbytes and Path(inside[0]).is_file():
            ranges.append((start, stop))
            paths.add(inside[0])
    marks = {path: _Mark.of(path) for path in paths}
    return MappedPages(tuple(ranges), {path: mark for path, mark in marks.items() if mark})


_ALIGNMENT = 256
"""Bytes: every number format fits there, and CUDA's own allocations begin so."""

Copies = list[tuple[Tensor, Tensor]]
"""Targets on the device, and what is copied into each, of the same size in bytes."""


class Span:
    """One frozen tensor of a block: where the block has it, and its place in the block's bytes.

    It is also the tensor's identity, which stays the same wherever the block lies
    (`adapters.base.dense_weight.weight_stamp`).

    Args:
        tensor: Its shape and number format.
    """

    __slots__ = ("dtype", "places", "shape", "start", "stop")

    def __init__(self, tensor: Tensor, start: int) -> None:
        self.dtype, self.shape = tensor.dtype, tensor.shape
        self.start, self.stop = start, start + tensor.numel() * tensor.element_size()
        self.places: list[tuple[dict[str, Any], str, bool]] = []

    @property
    def layout(self) -> tuple[Any, ...]:
        """What blocks must have in common to share memory on the device."""
        return self.start, self.dtype, tuple(self.shape)

    def view(self, flat: Tensor) -> Tensor:
        """This tensor in a block's bytes `[size]`."""
        return flat[self.start : self.stop].view(self.dtype).view(self.shape)

    def bind(self, tensor: Tensor) -> None:
        """Put a tensor in the place of the block's own."""
        for held, name, _ in self.places:
            held[name] = tensor

    def mark(self, marked: bool) -> None:
        """Let the tensor that the block has now carry this span as its identity, or not."""
        held, name, _ = self.places[0]
        if marked:
            held[name].weight_identity = self
        elif hasattr(held.get(name), "weight_identity"):
            del held[name].weight_identity

    def bindable(self, tensor: Tensor, marked: bool) -> Tensor:
        """A tensor as a module holds it; with this span as its identity if ``marked``."""
        if self.places[0][2]:
            tensor = nn.Parameter(tensor, requires_grad=False)
        if marked:
            tensor.weight_identity = self  # type: ignore[attr-defined]
        return tensor


def block_spans(block: nn.Module) -> tuple[Span, ...]:
    """The frozen tensors of a block: all of its parameters and buffers, before it has an adapter.

    Raises:
        BaseModelError: When one is trained, or is packed by a library that keeps its numbers in
            more places than the tensor.
    """
    found: dict[int, Span] = {}
    start = 0
    for path, module in block.named_modules():
        for held in (module._parameters, module._buffers):
            for name, tensor in held.items():
                if tensor is None:
                    continue
                _check(tensor, f"{path}.{name}" if path else name)
                span = found.get(id(tensor))
                if span is None:
                    span = found[id(tensor)] = Span(tensor, start)
                    start = -(-span.stop // _ALIGNMENT) * _ALIGNMENT
                span.places.append((held, name, held is module._parameters))
    return tuple(found.values())


def block_size(spans: Sequence[Span]) -> int:
    """Bytes of a block in one piece."""
    return spans[-1].stop if spans else 0


def _check(tensor: Tensor, name: str) -> None:
    plain = type(tensor) in (Tensor, nn.Parameter)
    if plain and not tensor.requires_grad:
        return
    what = "is trained" if tensor.requires_grad else f"is a {type(tensor).__name__}"
    raise BaseModelError(
        f"{name} of a block that is to be swapped {what}",
        "frozen plain tensors, which are never copied back",
        "Set memory.blocks_to_swap to 0, or load a base whose blocks are frozen.",
    )


@dataclass(frozen=True, slots=True)
class HostBlock:
    """A block's frozen weights on the host.

    Attributes:
        tensors: One for each, on the CPU.
        flat: The bytes `[size]` that these lie in, or None where they lie apart.
        mapped: The pages of those that lie in a mapped file.
    """

    spans: tuple[Span, ...]
    tensors: tuple[Tensor, ...]
    flat: Tensor | None = None
    mapped: MappedPages | None = None

    @property
    def size(self) -> int:
        """Bytes of the block on the device."""
        return block_size(self.spans)

    @property
    def layout(self) -> tuple[Any, ...]:
        """Blocks with the same one can take the same place on the device."""
        return tuple(span.layout for span in self.spans)

    def bind(self) -> None:
        """Let the block have its tensors here."""
        for span, tensor in zip(self.spans, self.tensors, strict=True):
            span.bind(span.bindable(tensor, marked=False))

    @property
    def is_bound(self) -> bool:
        """Whether the block has its tensors here."""
        pairs = zip(_present(self.spans), self.tensors, strict=True)
        return all(own.data_ptr() == held.data_ptr() for (_, own), held in pairs)

    def copies(self, slot: Tensor) -> Copies:
        """What brings the block into a slot of the device."""
        if self.flat is not None:
            return [(slot[: self.size], self.flat)]
        pairs = zip(self.spans, self.tensors, strict=True)
        return [(span.view(slot), tensor) for span, tensor in pairs]


class Master(ABC):
    """Keeps the weights of blocks on the host, and never writes to them.

    Attributes:
        lasting: Whether what it holds takes no memory, so that it is kept of blocks on the device.
    """

    lasting = False

    @abstractmethod
    def hold(self, spans: tuple[Span, ...]) -> HostBlock:
        """Take over the tensors that a block has now."""

    def drop(self, held: HostBlock) -> None:  # noqa: B027 - most have nothing to give back
        """Hear that a block is on the device from now on."""

    def close(self) -> None:  # noqa: B027
        """Give back what the system was asked for; the tensors stay readable."""


def _present(spans: Sequence[Span]) -> Iterator[tuple[Span, Tensor]]:
    for span in spans:
        held, name, _ = span.places[0]
        yield span, held[name].detach()


class PageableMaster(Master):
    """Ordinary memory: one flat buffer for each block; only one block is there twice for a time."""

    def hold(self, spans: tuple[Span, ...]) -> HostBlock:
        """Copy the tensors into one buffer, and let the block have them there."""
        flat = self._allocate(block_size(spans))
        for span, tensor in _present(spans):
            span.view(flat).copy_(tensor)
        return HostBlock(spans, tuple(span.view(flat) for span in spans), flat)

    def _allocate(self, size: int) -> Tensor:
        return whole_pages(size)


class MappedMaster(Master):
    """The tensors where they lie already: in a memory-mapped file, of which RAM holds no copy.

    Args:
        required: Whether a block that is mostly not in a file is an error.
    """

    lasting = True

    def __init__(self, required: bool) -> None:
        self._required = required

    def hold(self, spans: tuple[Span, ...]) -> HostBlock:
        """Take the tensors as they are.

        Raises:
            BaseModelError: When most of them have to be in a file, and are not.
        """
        tensors = tuple(tensor.to("cpu") for _, tensor in _present(spans))
        pages = mapped_pages(tensors)
        size = sum(tensor.nbytes for tensor in tensors)
        if self._required and pages is not None and 2 * pages.size < size:
            raise BaseModelError(
                f"memory.master is file, and {size - pages.size} of {size} bytes of a block are "
                "not in the base's file as they are needed",
                "a base whose file has the run's number format, without scales",
                "Set memory.master to auto, or training.precision to the file's number format.",
            )
        return HostBlock(spans, tensors, mapped=pages)

    def drop(self, held: HostBlock) -> None:
        """Give the memory that the file was read into back to the system."""
        if held.mapped is not None:
            held.mapped.forget()


class PinnedMaster(PageableMaster):
    """Flat buffers that the system may not page out, so that copies from them wait for nothing.

    Args:
        required: Whether a block that cannot be pinned is an error; else it stays pageable.
        machine: Says how much may be pinned, and is told what is.
        device: That reads them; None for the current one.
    """

    def __init__(
        self, required: bool, machine: Machine, device: torch.device | None = None
    ) -> None:
        self._required, self._memory = required, PinnedMemory(machine, device)

    @property
    def pinned_bytes(self) -> int:
        """Bytes that are pinned now."""
        return self._memory.size

    def _allocate(self, size: int) -> Tensor:
        """A pinned buffer.

        Raises:
            RunError: When it cannot be pinned and must be.
        """
        # All threads touch its pages; pinning, or a copy from a device, would do so with one.
        flat = super()._allocate(size).zero_()
        if not self._memory.pin(flat) and self._required:
            raise RunError(
                f"{size} bytes of a block cannot be pinned beside {self.pinned_bytes} that are",
                "a system that lets all swapped blocks be pinned in RAM",
                "Set memory.master to auto, which leaves the rest pageable, or lower "
                "memory.blocks_to_swap.",
            )
        return flat

    def drop(self, held: HostBlock) -> None:
        """Unpin the block's buffer."""
        if held.flat is not None:
            self._memory.unpin(held.flat)

    def close(self) -> None:
        """Unpin every buffer."""
        self._memory.close()


def make_master(name: str, device: torch.device, machine: Machine) -> Master:
    """The master of ``memory.master``.

    Args:
        name: ``auto``, ``pinned``, ``pageable`` or ``file``.

    Raises:
        RunError: When memory is to be pinned for a device that does not read it.
    """
    if name == "pinned" and device.type != "cuda":
        raise RunError(
            f"memory.master is pinned, and the run is on {device}",
            "pinned memory only for CUDA",
            "Set memory.master to auto.",
        )
    if name == "file":
        return MappedMaster(required=True)
    if name == "pageable" or device.type != "cuda":
        return PageableMaster()
    return PinnedMaster(name == "pinned", machine, device)
