"""Small text files that may come from anybody: read whole within bounds, or refused in words.

Everything that the trainer reads as text or JSON goes through here (a test walks the sources), so
that no device, pipe, huge file or deep nesting is met anywhere else.
"""

from __future__ import annotations

import codecs
import json
import os
import stat
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from ..errors import TrainerError
from .temporary import patiently

LARGEST_TEXT = 4 * 2**20
"""Bytes of a run file or a caption."""

LARGEST_JSON = 64 * 2**20
"""Bytes of a configuration, an index or a record."""

LARGEST_LIST = 512 * 2**20
"""Bytes of a list with an entry for every image."""

DEEPEST = 100
"""Levels of values inside values. Python's own limit depends on what was called before."""

_UTF_16 = (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)
_LONGEST_LINE = 2**16
_PIECE = 2**20

Refuse = Callable[[str], TrainerError]
"""Makes the error of a file from the reason, which is words such as ``it is a folder``."""


def read_text(path: Path | str, refuse: Refuse, largest: int = LARGEST_TEXT) -> str:
    """Read a text file.

    Returns:
        Its text without a byte-order mark, with line feeds alone.

    Raises:
        TrainerError: What ``refuse`` made, when it is not an ordinary file, cannot be read, is too
            large, or neither UTF-8 nor UTF-16 with its mark.
    """
    try:
        content = _content(path, largest)
        # Windows writes UTF-16 with its mark, by which it is certain.
        text = content.decode("utf-16" if content[:2] in _UTF_16 else "utf-8-sig")
    except UnicodeDecodeError as error:
        name = "UTF-16" if "16" in error.encoding else "UTF-8"
        raise refuse(f"it is not {name} text: {error.reason} at byte {error.start}") from error
    except FileNotFoundError as error:
        raise refuse("there is no file of this name") from error
    except OSError as error:
        raise refuse(error.strerror or str(error)) from error
    except ValueError as error:
        raise refuse(str(error)) from error
    return text.replace("\r\n", "\n").replace("\r", "\n")


def read_json(path: Path, refuse: Refuse, largest: int = LARGEST_JSON) -> Any:
    """Read a JSON file as `read_text` does, and give what `parse_json` makes of it.

    Raises:
        TrainerError: What ``refuse`` made: as `read_text`, and when it is not JSON, or nested too
            deeply.
    """
    text = read_text(path, refuse, largest)
    try:
        return parse_json(text)
    except ValueError as error:
        raise refuse(f"it is not readable JSON: {error}") from error


def read_object(path: Path, refuse: Refuse, largest: int = LARGEST_JSON) -> dict[str, Any]:
    """Read a JSON file that holds one object; else as `read_json`."""
    value = read_json(path, refuse, largest)
    if not isinstance(value, dict):
        raise refuse("it is not a JSON object")
    return value


def read_lines(path: Path) -> Iterator[str]:
    """Read the lines of a text file one after another, up to one that is too long.

    Args:
        path: The file. Bytes that are not UTF-8 become replacement characters.

    Yields:
        Lines without their ends.

    Raises:
        OSError: When it cannot be read.
        ValueError: When it is not an ordinary file.
    """
    require_regular(path)
    with path.open("rb") as file:
        while len(line := file.readline(_LONGEST_LINE)) < _LONGEST_LINE and line:
            yield line.decode("utf-8", "replace").rstrip("\r\n")


def parse_json(text: str | bytes, *, unique: bool = False) -> Any:
    """Parse JSON of bounded depth; the caller bounds its length.

    Args:
        unique: Whether a name that comes twice in an object is an error; else the last one counts.

    Returns:
        Dicts, lists, strings, numbers, truth values and None.

    Raises:
        ValueError: When it is none, is nested too deeply, or repeats a name.
    """
    if isinstance(text, bytes):
        text = text.decode(json.detect_encoding(text), "surrogatepass")
    try:
        value = (_UNIQUE if unique else _PLAIN).decode(text)
    except RecursionError as error:
        raise ValueError("it is nested too deeply") from error
    # No text has more levels than brackets that open one; headers of cached files are many.
    if text.count("{") + text.count("[") > DEEPEST:
        refuse_deep(value)
    return value


def parse_object(content: bytes, largest: int) -> Mapping[str, Any] | None:
    """The JSON object of so many bytes at most that somebody sent; None when it is none."""
    try:
        value = parse_json(content) if len(content) <= largest else None
    except ValueError:
        return None
    return value if isinstance(value, Mapping) else None


def refuse_deep(value: Any) -> None:
    """Refuse plain values with more levels than `DEEPEST`.

    Raises:
        ValueError: When there are more.
    """
    level = [value] if isinstance(value, dict | list) else []
    for _ in range(DEEPEST + 2):
        if not level:
            return
        inside = (each.values() if isinstance(each, dict) else each for each in level)
        level = [inner for each in inside for inner in each if isinstance(inner, dict | list)]
    raise ValueError("it is nested too deeply")


def require_regular(path: Path | str) -> int:
    """See that a path is an ordinary file, which ends, and no device or pipe; gives its bytes.

    Raises:
        OSError: When it cannot be looked at.
        ValueError: When it is something else, or no system takes the name.
    """
    status = os.stat(path)  # noqa: PTH116 - a caption of each of many images
    if stat.S_ISDIR(status.st_mode):
        raise ValueError("it is a folder")
    if not stat.S_ISREG(status.st_mode):
        raise ValueError("it is not an ordinary file")
    return status.st_size


def _content(path: Path | str, largest: int) -> bytes:
    size = require_regular(path)
    if size <= largest:
        # One byte more than it has: a file that grows is read on, up to what is allowed.
        content = _read(path, size + 1, largest + 1)
        size = max(size, len(content))
        if size <= largest:
            return content
    raise ValueError(f"it has {size} bytes, larger than the {largest} that are read")


def _read(path: Path | str, expected: int, most: int) -> bytes:
    """Read a file in as few calls of the system as there can be: datasets have many captions."""
    # A record may be replaced this very moment.
    flags = os.O_RDONLY | getattr(os, "O_BINARY", 0)
    file = patiently(lambda: os.open(path, flags), reads=True)
    try:
        content = os.read(file, expected)
        while len(content) not in (expected - 1, most) and (
            more := os.read(file, min(most - len(content), _PIECE))
        ):
            content += more
        return content
    finally:
        os.close(file)


def _without_repeats(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    values = dict(pairs)
    if len(values) < len(pairs):
        (name, _), *_ = Counter(name for name, _ in pairs).most_common(1)
        raise ValueError(f"{name[:200]!r} comes twice")
    return values


# Made once: to make one takes as long as to parse a small text.
_PLAIN = json.JSONDecoder()
_UNIQUE = json.JSONDecoder(object_pairs_hook=_without_repeats)
