"""A name for what a base's encoders yield, without reading all of their weights."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from pathlib import Path

_EDGE = 1 << 20


def folder_identity(folder: Path, parts: Sequence[str], settings: Sequence[str]) -> str:
    """Hash the encoders of a base.

    Of a weight file the size and the first and last MiB count, which hold the names, types and
    shapes of the tensors and some of their values: reading tens of gigabytes at every start would
    cost more than it protects from. Small files count whole. Paths do not count, so that a copied
    base is the same base.

    Args:
        folder: A Diffusers folder.
        parts: Its sub-folders that count.
        settings: What else decides the encodings, such as variant and text length.

    Returns:
        32 hexadecimal digits.
    """
    digest = hashlib.sha256("\x1f".join(settings).encode())
    for part in sorted(parts):
        for path in sorted((folder / part).iterdir()):
            if path.is_file() and not path.name.startswith("."):
                digest.update(f"\x1e{part}/{path.name}\x1f{path.stat().st_size}\x1f".encode())
                digest.update(_content(path))
    return digest.hexdigest()[:32]


def file_identity(path: Path) -> str:
    """Hash a file of weights by size and edges, as `folder_identity` does; its name does not count.

    Args:
        path: A file.

    Returns:
        32 hexadecimal digits.
    """
    digest = hashlib.sha256(f"{path.stat().st_size}\x1f".encode())
    digest.update(_content(path))
    return digest.hexdigest()[:32]


def _content(path: Path) -> bytes:
    size = path.stat().st_size
    with path.open("rb") as file:
        if path.suffix == ".json" or size <= 2 * _EDGE:
            return file.read()
        first = file.read(_EDGE)
        file.seek(size - _EDGE)
        return first + file.read(_EDGE)
