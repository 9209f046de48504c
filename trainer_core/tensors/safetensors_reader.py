"""The one reader of safetensors: from a file or from memory, one tensor at a time.

The header is checked here to the last byte, so that whatever a file holds, only the error comes out
that its `Wording` names. Tensors are read with plain file access, not through a memory map: what
was mapped and read counts as this process's memory, and Windows neither replaces nor removes a
mapped file. The weights of a base are the exception (`map_tensor`): they are cut into parts, which
are copied once.

Source: the safetensors format, https://github.com/huggingface/safetensors (README, "Format").
"""

from __future__ import annotations

import json
import math
import mmap
import os
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

import torch
from torch import Tensor

from ..errors import AdapterFileError, TrainerError
from ..filesystem.text_files import parse_json, require_regular
from .safetensors_writer import CODES, DTYPES, TensorInfo

LARGEST_HEADER = 100_000_000
"""Bytes of a header; the format allows no more."""

MOST_TENSORS = 100_000
"""Tensors of a file. The largest models have some thousand; a million would take gigabytes."""

_MOST_AXES = 16
_PICKLE_SUFFIXES = {".bin", ".ckpt", ".pickle", ".pkl", ".pt", ".pth"}
_LENGTH = 8
_START = 1000  # bytes that are looked at to tell what else a file is
_SHOWN = 120  # characters of a text in a message
# As a copy only because torch warns of memory that cannot be written; nothing is.
_MAPPED = mmap.ACCESS_COPY
if os.name == "nt":
    # There a copy takes a place in RAM or the paging file for all of its bytes.
    _MAPPED = mmap.ACCESS_READ
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch warns once
        torch.frombuffer(b" ", dtype=torch.uint8)
_TEXT = frozenset(b"\t\n\r" + bytes(range(0x20, 0x7F)))
# Zip archives, as torch writes them today, and pickles of the protocols 2 to 5.
_PICKLE_STARTS = (b"PK", b"\x80\x02", b"\x80\x03", b"\x80\x04", b"\x80\x05")


@dataclass(frozen=True, slots=True, eq=False)
class HeldTensors:
    """Tensors in memory that are read as a file of them would be.

    Attributes:
        name: What messages call them.
        tensors: Key to tensor.
        metadata: The strings that the file's header would have.
    """

    name: str
    tensors: Mapping[str, Tensor]
    metadata: Mapping[str, str] = field(default_factory=dict)

    def __str__(self) -> str:
        return self.name


@dataclass(frozen=True, slots=True, eq=False)
class FilePart:
    """Some tensors of a file, under names of their own.

    Attributes:
        names: Name to the file's key.
        title: What messages call the part.
    """

    path: Path
    names: Mapping[str, str]
    title: str

    @property
    def name(self) -> str:
        """What a list of files calls it."""
        return f"{self.path.name} ({self.title})"

    def __str__(self) -> str:
        return f"{self.path} ({self.title})"


Source = Path | HeldTensors | FilePart
"""Where tensors are read from."""


@dataclass(frozen=True, slots=True)
class Wording:
    """How the errors of a file are told.

    Attributes:
        error: Their class.
        place: What stands before the file's name.
        readable: What a file is to be that cannot be read at all.
        whole: What a file is to be that is damaged.
        instead: What to do about a pickle.
        again: What to do about a damaged file.
    """

    error: type[TrainerError] = AdapterFileError
    place: str = ""
    readable: str = "a readable adapter file"
    whole: str = "a whole safetensors file with every factor of every layer"
    instead: str = "Ask its author for a safetensors file."
    again: str = "Export or download it again."

    def broken(self, source: Path, reason: str) -> TrainerError:
        """An error for a file that is not whole."""
        return self.error(f"{self.place}{source}: {reason}", self.whole, self.again)

    def unreadable(self, source: Path, error: OSError) -> TrainerError:
        """An error for a file that the system does not give."""
        return self.error(
            f"{self.place}{source} cannot be read ({error.strerror or error})",
            self.readable,
            "Check the path and the file's permissions.",
        )


ADAPTER = Wording()


def broken(source: Path, reason: str) -> TrainerError:
    """An error for a file that is not whole, or not an adapter as it should be."""
    return ADAPTER.broken(source, reason)


class TensorFile:
    """A safetensors file whose header was read; tensors are read when they are asked for.

    Attributes:
        path: The file; of tensors in memory their name.
        tensors: Key to where the tensor lies.
        metadata: The header's strings.
    """

    path: Path
    tensors: Mapping[str, TensorInfo]
    metadata: Mapping[str, str]

    def __init__(
        self, path: Path, file: IO[bytes], wording: Wording = ADAPTER, *, any_format: bool = False
    ) -> None:
        self.path, self._file, self._wording = path, file, wording
        try:
            self.tensors, self.metadata = _header(file, any_format=any_format)
        except ValueError as error:  # UnicodeDecodeError and JSONDecodeError among them
            reason = str(error).splitlines()[0][:500] if str(error) else type(error).__name__
            raise wording.broken(
                path, f"it is not a complete safetensors file ({reason})"
            ) from error

    def read(self, key: str) -> Tensor:
        """Read a tensor into memory of its own, in the file's number format.

        Raises:
            TrainerError: When the file has become shorter, cannot be read, or was closed.
        """
        info = self.tensors[key]
        return self._bytes(key, info.start, info.size).view(info.dtype).reshape(info.shape)

    def read_rows(self, key: str, first: int, last: int) -> Tensor:
        """Read the rows from ``first`` to before ``last`` of a tensor; as `read`."""
        info = self.tensors[key]
        row = info.size // info.shape[0]
        values = self._bytes(key, info.start + first * row, (last - first) * row)
        return values.view(info.dtype).reshape(last - first, *info.shape[1:])

    def read_all(self) -> dict[str, Tensor]:
        """Read every tensor; as `read`."""
        return {key: self.read(key) for key in self.tensors}

    def _bytes(self, key: str, start: int, size: int) -> Tensor:
        values = torch.empty(size, dtype=torch.uint8)
        try:
            self._file.seek(start)
            count = self._file.readinto(values.numpy()) if size else 0  # type: ignore[attr-defined]
        except OSError as error:
            raise self._wording.unreadable(self.path, error) from error
        except ValueError as error:
            raise self._wording.error(
                f"{self.path} was closed before {key} was read",
                "reading inside the block that opened the file",
                "This is a fault of the program; please report it.",
            ) from error
        if count != size:
            raise self._wording.broken(self.path, f"it has become shorter; {key} is not whole")
        return values


class _InMemory(TensorFile):
    """Tensors in memory with the face of a file."""

    def __init__(self, source: HeldTensors, wording: Wording) -> None:
        self.path, self.metadata = Path(source.name), source.metadata
        self._held = source.tensors
        odd = next((k for k, each in source.tensors.items() if each.dtype not in CODES), None)
        if odd is not None:
            reason = f"{odd!r} is of the number format {source.tensors[odd].dtype}"
            raise wording.broken(self.path, f"{reason}, which is not read")
        self.tensors = {
            key: TensorInfo(key, CODES[each.dtype], tuple(each.shape), start=0, end=each.nbytes)
            for key, each in source.tensors.items()
        }

    def read(self, key: str) -> Tensor:
        return self._held[key].detach().to("cpu", copy=True).contiguous()

    def read_rows(self, key: str, first: int, last: int) -> Tensor:
        return self._held[key][first:last].detach().to("cpu", copy=True).contiguous()


@contextmanager
def open_tensors(
    source: Source, wording: Wording = ADAPTER, *, any_format: bool = False
) -> Iterator[TensorFile]:
    """Open a safetensors file for the time of a block.

    Args:
        source: A file, a part of one, or tensors in memory.
        any_format: Whether tensors may be of number formats that are not read; they are listed.

    Raises:
        TrainerError: Of the wording's class, when it is not there, cannot be read, is a pickle
            (which is never opened as one), or is not a complete safetensors file.
    """
    if isinstance(source, HeldTensors):
        yield _InMemory(source, wording)
        return
    if isinstance(source, FilePart):
        with open_tensors(source.path, wording, any_format=any_format) as file:
            file.tensors = {name: file.tensors[key] for name, key in source.names.items()}
            yield file
        return
    try:
        require_regular(source)
        opened = source.open("rb")
    except OSError as error:
        raise wording.unreadable(source, error) from error
    except ValueError as error:  # a folder, a device, or a name that no system takes
        raise wording.error(
            f"{wording.place}{str(source)!r} cannot be read ({error})",
            wording.readable,
            "Check the path.",
        ) from error
    with opened as file:
        try:
            _refuse_others(source, file, wording)
            tensors = TensorFile(source, file, wording, any_format=any_format)
        except OSError as error:
            raise wording.unreadable(source, error) from error
        yield tensors


def read_whole(
    path: Path, wording: Wording = ADAPTER, memory: Tensor | None = None
) -> tuple[dict[str, Tensor], dict[str, str]]:
    """Read a small file at once.

    Args:
        memory: Bytes to read into where they are enough: memory that was used already costs less
            than new. The tensors are then views of it.

    Returns:
        All tensors, which may share memory, and the header's strings.

    Raises:
        TrainerError: As `open_tensors`.
    """
    try:
        require_regular(path)
        with path.open("rb", buffering=0) as file:
            size = os.fstat(file.fileno()).st_size
            fits = memory is not None and size <= len(memory)
            taken = memory if memory is not None and fits else torch.empty(size, dtype=torch.uint8)
            content = taken[:size]
            held = content.numpy()
            count = 0
            while count < len(held) and (more := file.readinto(held.data[count:])):
                count += more
        length = int.from_bytes(held[:_LENGTH].tobytes(), "little")
        _check_length(length, count)
        tensors, metadata = _parsed(
            held[_LENGTH : _LENGTH + length].tobytes(), count, any_format=False
        )
    except (OSError, ValueError):
        # The careful way finds the words for what is wrong.
        with open_tensors(path, wording) as careful:
            return careful.read_all(), dict(careful.metadata)
    return {key: _view(content, info) for key, info in tensors.items()}, metadata


def _view(content: Tensor, info: TensorInfo) -> Tensor:
    values = content[info.start : info.end]
    if info.start % info.dtype.itemsize:
        values = values.clone()
    return values.view(info.dtype).reshape(info.shape)


def map_tensor(path: Path, info: TensorInfo) -> Tensor:
    """A view of a file's bytes as a tensor; the mapping ends with the last view of it.

    Raises:
        OSError: When the file cannot be read.
        ValueError: When it has become shorter.
    """
    if not info.size:
        return torch.empty(info.shape, dtype=info.dtype)
    # A mapping begins at a page.
    inside = info.start % mmap.ALLOCATIONGRANULARITY
    start = info.start - inside
    with path.open("rb") as opened:
        mapped = mmap.mmap(opened.fileno(), info.end - start, access=_MAPPED, offset=start)
    values = torch.frombuffer(mapped, dtype=torch.uint8, offset=inside)
    if inside % 8:
        values = values.clone()  # a header that is not padded would leave numbers across words
    return values.view(info.dtype).reshape(info.shape)


def text_instead(start: bytes) -> tuple[str, str]:
    """What a text is that came in place of a file of tensors, and the cure; empty for no text.

    Args:
        start: The first bytes of the file.
    """
    text = start.removeprefix(b"\xef\xbb\xbf").strip()
    if not text or not all(each in _TEXT for each in text[:_LENGTH]):
        return "", ""
    again = "Download it again, with a login where the source asks for one, and its terms accepted."
    if text.startswith(b"version https://git-lfs"):
        return "a git-LFS pointer, not the file itself", "Run git lfs pull there, or download it."
    if text[:1] == b"<":
        return "a web page, such as one to log in", again
    shown = text.decode("utf-8", "replace")[:_SHOWN]
    return f"a text, such as a server's answer: {shown!r}", again


def _refuse_others(path: Path, file: IO[bytes], wording: Wording) -> None:
    """Refuse what is surely no safetensors file, by its first bytes."""
    start = file.read(_START)
    what, cure = text_instead(start)
    if what:
        raise wording.error(f"{wording.place}{path} is {what}", wording.whole, cure)
    start = start[: _LENGTH + 1]
    # A safetensors file begins with the length of its header, which then opens with a brace.
    looks = start.startswith(_PICKLE_STARTS) and start[_LENGTH:] != b"{"
    if looks or path.suffix.lower() in _PICKLE_SUFFIXES:
        raise wording.error(
            f"{wording.place}{path} is a pickle"
            + ("" if looks else f", as the ending {path.suffix} says"),
            "a safetensors file; a pickle could run code and is never opened",
            wording.instead,
        )


def _header(file: IO[bytes], *, any_format: bool) -> tuple[dict[str, TensorInfo], dict[str, str]]:
    size = file.seek(0, 2)
    file.seek(0)
    length = int.from_bytes(file.read(_LENGTH), "little")
    if not size:
        raise ValueError("the file is empty")
    _check_length(length, size)
    return _parsed(file.read(length), size, any_format=any_format)


def _check_length(length: int, size: int) -> None:
    if size < _LENGTH or length > min(size - _LENGTH, LARGEST_HEADER):
        raise ValueError(f"{size} bytes, with a header of {length}")


def _parsed(
    content: bytes, size: int, *, any_format: bool
) -> tuple[dict[str, TensorInfo], dict[str, str]]:
    length = len(content)
    count = content.count(b"data_offsets")
    if count > MOST_TENSORS:  # seen before it is parsed
        raise ValueError(f"it lists {count} tensors, and {MOST_TENSORS} are read at most")
    entries = _parse_text(content.decode("utf-8"))
    if not isinstance(entries, dict):
        raise ValueError("its header is not an object")
    metadata = entries.pop("__metadata__", {})
    if not isinstance(metadata, dict) or not all(isinstance(v, str) for v in metadata.values()):
        raise ValueError("its metadata is not an object of strings")
    begin = _LENGTH + length
    tensors = {key: _info(key, entry, begin, any_format) for key, entry in entries.items()}
    _check_places(tensors, begin, size)
    return tensors, metadata


def _parse_text(text: str) -> Any:
    """Parse a header; one half of a pair of code units, which JSON can escape, is not text."""
    entries = parse_json(text, unique=True)
    if "\\ud" in text.lower():
        try:
            json.dumps(entries, ensure_ascii=False).encode("utf-8")
        except UnicodeEncodeError as error:
            raise ValueError("its header holds a lone surrogate, which is not text") from error
    return entries


def _info(key: str, entry: Any, begin: int, any_format: bool) -> TensorInfo:
    if not isinstance(entry, dict) or set(entry) != {"dtype", "shape", "data_offsets"}:
        raise ValueError(f"the entry of {key!r} is not one of a tensor")
    shape, offsets = _counts(key, entry["shape"]), _counts(key, entry["data_offsets"])
    code = entry["dtype"]
    dtype = DTYPES.get(code) if isinstance(code, str) else None
    if dtype is None and not (any_format and isinstance(code, str)):
        raise ValueError(f"{key!r} is of the number format {code!r}, which is not read")
    size = offsets[1] - offsets[0] if len(offsets) == 2 else -1
    if size < 0 or (dtype is not None and size != math.prod(shape) * dtype.itemsize):
        raise ValueError(f"the place {offsets} of {key!r} does not fit its shape {shape}")
    return TensorInfo(key, code, tuple(shape), start=begin + offsets[0], end=begin + offsets[1])


def _counts(key: str, value: Any) -> list[int]:
    fits = isinstance(value, list) and len(value) <= _MOST_AXES
    if not fits or not all(type(each) is int and 0 <= each < 2**63 for each in value):
        raise ValueError(f"{str(value)[:200]} at {key!r} is not a list of sizes")
    return value


def _check_places(tensors: Mapping[str, TensorInfo], begin: int, size: int) -> None:
    """See whether the tensors lie one after another and fill the file."""
    place = begin
    for key, info in sorted(tensors.items(), key=lambda item: (item[1].start, item[1].size)):
        if info.start != place:
            raise ValueError(f"{key!r} overlaps another tensor or leaves a gap before it")
        place += info.size
    if place != size:
        raise ValueError(f"its tensors end at byte {place} of {size}")
