"""Which cached files are whole, known without opening one after another.

The index says of a key how large its file was when it was written or last looked into, and when
that was. A file that is as the index says is whole. One that is not in the index, because its
writer was killed before it said so, is opened once and then is in the index as well. So the index
is never needed, only fast.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from ...filesystem.record_table import RecordTable, key_bytes
from .cache_file import Entry, is_key, look_into

INDEX_FOLDER = "index"
_NAME = "entries"
_VERSION = 1
_FIELDS = [
    ("key", "u1", (32,)),
    ("size", "<i8"),
    ("changed", "<i8"),
    ("tokens", "<u4"),
    ("format", "<u4"),
]
FORMATS = ("", "fp32", "bf16", "fp16")
"""Number formats of cached files, by their number in the index; the first for all others."""

_MOST_TOKENS = 2**31 - 1  # a file of a stranger may claim more

Keys = NDArray[np.uint8]


@dataclass(frozen=True, slots=True)
class Found:
    """What an index knows of some keys.

    Attributes:
        whole: Of each key, whether its file is there and whole.
        tokens: Of each key, the number of text tokens in its file; 0 where there are none.
        damaged: Of each key, whether there is a file, and it is not whole.
        opened: How many files had to be opened to know it.
    """

    whole: NDArray[np.bool_]
    tokens: NDArray[np.int32]
    damaged: NDArray[np.bool_]
    opened: int


class CacheIndex:
    """The index of a cache folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._table = RecordTable(folder / INDEX_FOLDER, _NAME, _FIELDS, _VERSION)

    def look_up(self, kinds: Sequence[str], kind_of: Keys, keys: Keys, *, verify: bool) -> Found:
        """Say which files are there and whole; opens those that the index does not know.

        Args:
            kind_of: `[N]`, in which of them each file is.
            keys: `[N, 32]`, different ones.
            verify: Whether to read every file and compare its checksum.
        """
        whole, tokens = np.zeros(len(keys), bool), np.zeros(len(keys), np.int32)
        known = self._table.read()
        unsure: list[int] = []
        for number, kind in enumerate(kinds):
            mine = np.nonzero(kind_of == number)[0]
            if not len(mine):
                continue
            files = scan_files(self.folder / kind)
            place, there = _join(key_bytes(keys[mine]), key_bytes(files["key"]))
            mine, files = mine[there], files[place[there]]
            place, same = _join(key_bytes(keys[mine]), key_bytes(known["key"]))
            rows = known[place] if len(known) else np.zeros(len(mine), known.dtype)
            for field in ("size", "changed"):
                same &= rows[field] == files[field]
            if verify:
                same[:] = False
            whole[mine[same]] = True
            tokens[mine[same]] = np.minimum(rows["tokens"][same], _MOST_TOKENS)
            unsure += mine[~same].tolist()
        for at in unsure:
            entry = Entry(self.folder, kinds[int(kind_of[at])], keys[at].tobytes().hex())
            tensors = look_into(entry, thorough=verify)
            if tensors is not None:
                whole[at], tokens[at] = True, count_tokens(tensors)
        self._add(
            [(keys[at], kinds[int(kind_of[at])], int(tokens[at])) for at in unsure if whole[at]]
        )
        damaged = np.zeros(len(keys), bool)
        damaged[unsure] = ~whole[unsure]
        return Found(whole, tokens, damaged, len(unsure))

    def record(self, entry: Entry, tensors: Mapping[str, Tensor]) -> int:
        """Note that a file was written; gives its text tokens."""
        key = np.frombuffer(bytes.fromhex(entry.key), np.uint8)
        tokens = count_tokens({name: tuple(each.shape) for name, each in tensors.items()})
        self._add([(key, entry.kind, tokens)])
        return tokens

    def close(self) -> None:
        """Put together what several processes noted."""
        self._table.close()

    def _add(self, noted: Sequence[tuple[Any, str, int]]) -> None:
        rows = self._table.rows(len(noted))
        kept = 0
        for key, kind, tokens in noted:
            path = self.folder / kind / f"{key.tobytes().hex()}.safetensors"
            try:
                status = path.stat()
            except OSError:
                continue
            row = rows[kept]
            row["key"], row["tokens"] = key, tokens
            row["size"], row["changed"] = status.st_size, status.st_mtime_ns
            kept += 1
        self._table.add(rows[:kept])


def scan_files(folder: Path) -> NDArray[Any]:
    """The cached files of a folder: key, size in bytes, and when each was last changed (ns)."""
    keys: list[str] = []
    numbers: list[tuple[int, int]] = []
    try:
        with os.scandir(folder) as entries:
            for each in entries:
                name = each.name
                if not name.endswith(".safetensors") or not is_key(name[:-12]):
                    continue
                try:
                    status = each.stat()
                except OSError:
                    continue  # removed meanwhile
                if not stat.S_ISREG(status.st_mode):
                    continue
                keys.append(name[:64])
                numbers.append((status.st_size, status.st_mtime_ns))
    except OSError:
        pass
    rows = np.zeros(
        len(keys), np.dtype([("key", "u1", (32,)), ("size", "<i8"), ("changed", "<i8")])
    )
    if keys:
        rows["key"] = np.frombuffer(bytes.fromhex("".join(keys)), np.uint8).reshape(-1, 32)
        pairs = np.array(numbers, np.int64)
        rows["size"], rows["changed"] = pairs[:, 0], pairs[:, 1]
    return rows


def _join(wanted: NDArray[Any], known: NDArray[Any]) -> tuple[NDArray[Any], NDArray[np.bool_]]:
    """Place in `given` of each of `wanted`, and whether it is there at all."""
    if not len(known) or not len(wanted):
        return np.zeros(len(wanted), np.int64), np.zeros(len(wanted), bool)
    order = np.argsort(known)
    place = order[np.minimum(np.searchsorted(known, wanted, sorter=order), len(known) - 1)]
    return place, known[place] == wanted


def count_tokens(shapes: Mapping[str, Sequence[int]]) -> int:
    """Text tokens in a file: the rows of its longest matrix; 0 for latents."""
    longest = max((shape[0] for shape in shapes.values() if len(shape) == 2), default=0)
    return min(longest, _MOST_TOKENS)
