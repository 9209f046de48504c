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
import os
import re
import time
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from ...errors import DatasetError, StorageError
from ...filesystem.storage import write_text
from ...filesystem.text_files import LARGEST_LIST, read_object
from ...tensors.safetensors_reader import Wording, open_tensors
from ...tensors.safetensors_writer import save_tensors

CACHE_VERSION = 2
"""Raised when images are prepared, or tensors are kept, in another way than before."""

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
        path: Where it is or will be.
        key: Hash of everything that its content depends on.
    """

    path: Path
    key: str


def make_entry(folder: Path, kind: str, *parts: str | int) -> Entry:
    """Name the file for some content.

    Args:
        folder: The cache folder.
        kind: ``latents`` or ``text``; a folder of its own.
        parts: Everything that the content depends on, in a fixed order.

    Returns:
        The entry; the file may not exist yet.
    """
    key = source_hash(CACHE_VERSION, kind, *parts)
    return Entry(folder / kind / f"{key}.safetensors", key)


def source_hash(*parts: str | int) -> str:
    """Name what something is made from, in 64 hexadecimal digits."""
    text = json.dumps(parts)
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()


def entry_of_key(folder: Path, kind: str, key: str) -> Entry:
    """The entry of a key from an earlier `make_entry`, which a list of cached files names.

    Raises:
        ValueError: When it is not such a key; it could lead out of the folder otherwise.
    """
    if not isinstance(key, str) or not _KEY.fullmatch(key):
        raise ValueError(f"{key!r} is not a key")
    return Entry(folder / kind / f"{key}.safetensors", key)


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
        entry: The place.
        thorough: Whether to read the tensors and compare the checksum, not only the header.

    Returns:
        False for a missing, shortened, swapped or foreign file, and with `thorough` for one with
        changed bytes.
    """
    if not entry.path.is_file():
        return False
    try:
        with open_tensors(entry.path, _WORDING) as file:
            metadata = file.metadata
            shapes = {name: list(file.tensors[name].shape) for name in sorted(file.tensors)}
            if metadata.get("key") != entry.key or metadata.get("shapes") != json.dumps(shapes):
                return False
            if not thorough:
                return True
            tensors = file.read_all()
    except StorageError:
        return False
    return metadata.get("checksum") == _checksum(tensors)


def read_entry(entry: Entry) -> dict[str, Tensor]:
    """Read an entry's tensors, numbers with a fraction as float32, and compare the checksum.

    Raises:
        StorageError: When the file is damaged or gone.
    """
    with open_tensors(entry.path, _WORDING) as file:
        tensors = file.read_all()
    if file.metadata.get("checksum") != _checksum(tensors):
        raise _WORDING.broken(entry.path, "its checksum does not fit its content")
    return {
        name: tensor.float() if tensor.is_floating_point() else tensor
        for name, tensor in tensors.items()
    }


def _checksum(tensors: Mapping[str, Tensor]) -> str:
    value = 0
    for name in sorted(tensors):
        tensor = tensors[name]
        value = zlib.crc32(f"{name} {tensor.dtype} {list(tensor.shape)}".encode(), value)
        if tensor.numel():
            flat = tensor.contiguous().reshape(-1).view(torch.uint8)
            value = zlib.crc32(flat.numpy().data, value)
    return f"{value:08x}"


_FILE = "picture_hashes.json"
_CHUNK = 1 << 20
# A file changed twice within a file system's tick keeps its stamp; two seconds is FAT's tick.
_TICK_NS = 2_000_000_000

_Stamp = tuple[int, int, int, int]


class ContentHashes:
    """Hashes of image files, remembered in the cache folder.

    Args:
        folder: The cache folder.
        trust: Whether remembered hashes are believed; otherwise every file is read.
    """

    def __init__(self, folder: Path, trust: bool = True) -> None:
        self._path = folder / _FILE
        self._known = _read_memory(self._path)
        self._trust = trust
        self._seen: dict[Path, tuple[_Stamp, str]] = {}
        self._changed = False

    def of(self, path: Path) -> str:
        """SHA-256 of an image file's bytes, as 64 hexadecimal digits.

        Raises:
            DatasetError: When the file cannot be read.
        """
        if path in self._seen:
            return self._seen[path][1]
        try:
            stamp = _stamp(path)
            name = hashlib.sha256(os.fsencode(path.absolute())).hexdigest()
            known = self._known.get(name)
            if self._trust and known is not None and known[:-1] == list(stamp):
                digest = str(known[-1])
            else:
                digest = hash_file(path)
                self._remember(name, stamp, digest)
        except OSError as error:
            raise DatasetError(
                f"{path} cannot be read ({error.strerror})",
                "a readable image",
                "Give read access to the file, or remove it from the dataset.",
            ) from error
        self._seen[path] = (stamp, digest)
        return digest

    def check_unchanged(self, path: Path) -> None:
        """Make sure that a file is still the one that was hashed.

        Raises:
            DatasetError: When it was changed or removed in the meantime.
        """
        try:
            same = _stamp(path) == self._seen[path][0]
        except OSError:
            same = False
        if not same:
            raise DatasetError(
                f"{path} changed while the dataset was being encoded",
                "images that stay as they are until encoding is done",
                "Start again when nothing writes to the dataset folder.",
            )

    def save(self) -> None:
        """Write what is known to the cache folder."""
        if self._changed:
            write_text(self._path, json.dumps(self._known))
            self._changed = False

    def _remember(self, name: str, stamp: _Stamp, digest: str) -> None:
        newest = max(stamp[1], stamp[2])
        if time.time_ns() - newest > _TICK_NS:
            self._known[name] = [*stamp, digest]
            self._changed = True


def _stamp(path: Path) -> _Stamp:
    status = path.stat()
    return status.st_size, status.st_mtime_ns, status.st_ctime_ns, status.st_ino


def hash_file(path: Path) -> str:
    """SHA-256 of a file's content, read in parts."""
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while chunk := file.read(_CHUNK):
            digest.update(chunk)
    return digest.hexdigest()


def _read_memory(path: Path) -> dict[str, list[int | str]]:
    def refuse(reason: str) -> DatasetError:
        return DatasetError(f"{path}: {reason}", "the memory of hashes", "Remove it.")

    try:
        value = read_object(path, refuse, LARGEST_LIST)
    except DatasetError:
        return {}  # it is written again
    return {name: row for name, row in value.items() if _is_row(row)}


def _is_row(row: object) -> bool:
    return (
        isinstance(row, list)
        and len(row) == 5
        and all(isinstance(number, int) for number in row[:4])
        and isinstance(row[4], str)
    )
