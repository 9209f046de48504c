"""The files of the cache folder: encoded tensors, and the hashes of the images they are made from.

The header of encoded tensors repeats the key of what they were made from, the shapes and a
checksum, so that a file which was cut short, swapped or written by something else is known for
what it is. Hashes of images are remembered by the file's stamp (size, times, inode), so that an
unchanged dataset is not read again; that memory holds no paths, only their hashes, because caches
are passed on to other people.
"""

from __future__ import annotations

import hashlib
import json
import re
import threading
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from json.encoder import encode_basestring_ascii as encode_ascii
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from ...errors import StorageError
from ...tensors.safetensors_reader import Wording, open_tensors, read_whole
from ...tensors.safetensors_writer import save_tensors

CACHE_VERSION = 2
"""Raised when images are prepared, or tensors are kept, in another way than before."""

_READ_BYTES = 8 << 20
_OWN = threading.local()
_KEY = re.compile(r"[0-9a-f]{64}")
_AGAIN = "Start again with cache.verify=true: damaged files are encoded again."
_WORDING = Wording(
    StorageError,
    "the cached file is damaged: ",
    readable="the file as it was written",
    whole="the file as it was written",
    instead=_AGAIN,
    again=_AGAIN,
)


@dataclass(frozen=True, slots=True)
class Entry:
    """The place of one cached file.

    Attributes:
        kind: The folder in it, such as ``latents``.
        key: Hash of everything that its content depends on.
    """

    folder: Path
    kind: str
    key: str

    @property
    def path(self) -> Path:
        """Where the file is or will be."""
        return self.folder / self.kind / f"{self.key}.safetensors"


def make_entry(folder: Path, kind: str, *parts: str | int) -> Entry:
    """Name the file for some content; it may not exist yet.

    Args:
        kind: ``latents`` or ``text``; a folder of its own.
        parts: Everything that the content depends on, in a fixed order.
    """
    key = source_hash(CACHE_VERSION, kind, *parts)
    return Entry(folder, kind, key)


def source_hash(*parts: str | int) -> str:
    """Name what something is made from, in 64 hexadecimal digits."""
    # As `json.dumps` writes it, in a third of the time.
    text = f"[{', '.join([_json(p) for p in parts])}]"
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()


def _json(part: str | int) -> str:
    if type(part) is str:
        return encode_ascii(part)
    return str(part) if type(part) is int else json.dumps(part)


def is_key(text: str) -> bool:
    """Whether a text is such a key."""
    return _KEY.fullmatch(text) is not None


def entry_of_key(folder: Path, kind: str, key: str) -> Entry:
    """The entry of a key from an earlier `make_entry`, which a list of cached files names.

    Raises:
        ValueError: When it is not such a key; it could lead out of the folder otherwise.
    """
    if not isinstance(key, str) or not is_key(key):
        raise ValueError(f"{key!r} is not a key")
    return Entry(folder, kind, key)


def cache_folders(folder: Path) -> tuple[Path, ...]:
    """The folders of a cache in which files are written: its own and one for each kind."""
    if not folder.is_dir():
        return ()
    kinds = (path for path in folder.iterdir() if path.is_dir() and not path.is_symlink())
    return (folder, *sorted(kinds))


def write_entry(entry: Entry, tensors: Mapping[str, Tensor]) -> None:
    """Write tensors in their own dtype, atomically.

    Raises:
        StorageError: When the file cannot be written and no other process wrote it either.
    """
    ready = {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}
    metadata = {
        "key": entry.key,
        "shapes": json.dumps({name: list(ready[name].shape) for name in sorted(ready)}),
        "checksum": _checksum(ready),
        "sum": _sum(ready),
    }
    try:
        save_tensors(entry.path, ready, metadata)
    except StorageError:
        # Windows refuses to replace a file that another process reads: the same content.
        if not is_sound(entry, thorough=True):
            raise


def is_sound(entry: Entry, thorough: bool = False) -> bool:
    """Tell whether an entry's file is there and whole.

    Args:
        thorough: Whether to read the tensors and compare the checksum, not only the header.

    Returns:
        False for a missing, shortened, swapped or foreign file, and with `thorough` for one with
        changed bytes.
    """
    return look_into(entry, thorough) is not None


def look_into(entry: Entry, thorough: bool = False) -> dict[str, tuple[int, ...]] | None:
    """The shapes of an entry's tensors; None where `is_sound` is False."""
    if not entry.path.is_file():
        return None
    try:
        with open_tensors(entry.path, _WORDING) as file:
            metadata = file.metadata
            shapes = {name: tuple(file.tensors[name].shape) for name in sorted(file.tensors)}
            if metadata.get("key") != entry.key or metadata.get("shapes") != json.dumps(shapes):
                return None
            if thorough and metadata.get("checksum") != _checksum(file.read_all()):
                return None
    except StorageError:
        return None
    return shapes


def read_entry(entry: Entry) -> dict[str, Tensor]:
    """Read an entry's tensors, numbers with a fraction as float32, and compare the checksum.

    Raises:
        StorageError: When the file is damaged or gone.
    """
    tensors, metadata = read_whole(entry.path, _WORDING, _memory())
    if metadata.get("sum") != _sum(tensors):
        raise _WORDING.broken(entry.path, "its checksum does not fit its content")
    return {
        name: tensor.to(torch.float32 if tensor.is_floating_point() else tensor.dtype, copy=True)
        for name, tensor in tensors.items()
    }


def _memory() -> Tensor:
    """Memory that this thread reads files into, one after the other."""
    kept = getattr(_OWN, "memory", None)
    if kept is None:
        kept = _OWN.memory = torch.empty(_READ_BYTES, dtype=torch.uint8)
    return kept


def _sum(tensors: Mapping[str, Tensor]) -> str:
    """A sum of all words, a seventh of the time of `_checksum`; compared at each reading."""
    total = 0
    for name, tensor in tensors.items():
        described = f"{name} {tensor.dtype} {list(tensor.shape)}".encode()
        total += zlib.crc32(described) << 32
        if tensor.numel():
            flat = tensor.contiguous().reshape(-1).view(torch.uint8).numpy()
            words = len(flat) // 8 * 8
            total += int(np.add.reduce(flat[:words].view("<u8"), dtype=np.uint64))
            total += int.from_bytes(flat[words:].tobytes(), "little") * 3
    return f"{total % 2**64:016x}"


def _checksum(tensors: Mapping[str, Tensor]) -> str:
    value = 0
    for name in sorted(tensors):
        tensor = tensors[name]
        value = zlib.crc32(f"{name} {tensor.dtype} {list(tensor.shape)}".encode(), value)
        if tensor.numel():
            flat = tensor.contiguous().reshape(-1).view(torch.uint8)
            value = zlib.crc32(flat.numpy().data, value)
    return f"{value:08x}"
