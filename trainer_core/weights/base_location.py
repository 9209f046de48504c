"""Where the files of a base are, and a name for what its encoders yield."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from ..config.base_path import DENOISERS

EMBEDDED = "embedded"
"""The word for the tiny base that ships with the trainer, where a path is asked for."""


@dataclass(frozen=True, slots=True)
class BaseLocation:
    """A checked base.

    Attributes:
        folder: The Diffusers folder with the transformer; for a single file a folder of the pack
            with the settings alone.
        encoders: The Diffusers folder with text encoders and VAE; mostly the same. When they were
            not asked for, it may hold the settings alone.
        variant: ``generate``, ``edit``, ``edit_plus`` or ``layered``; never ``auto``.
        text_length: Most text tokens that the encoder yields.
        identity: Hash of everything that decides what the encoders yield; part of cache keys. The
            precision that they run in is not known here.
        embedded: Whether this is the tiny base that ships with the trainer.
        file: The single file with the transformer's weights; None when they are in ``folder``.
        reads_tokens: Whether a text encoder is trained, as a part of the denoiser, so that texts
            are encoded to its tokens (`families.trainable_text`).
        part: Sub-folder of ``folder`` with the transformer; some pipelines have two.
    """

    folder: Path
    encoders: Path
    variant: str
    text_length: int
    identity: str
    embedded: bool
    file: Path | None = None
    reads_tokens: bool = False
    part: str = DENOISERS[0]

    @property
    def denoiser(self) -> Path:
        """The folder of the transformer, with its settings."""
        return self.folder / self.part


_EDGE = 1 << 20


def folder_identity(folder: Path, parts: Sequence[str], settings: Sequence[str]) -> str:
    """Hash the encoders of a base.

    Of a weight file the size and the first and last MiB count, which hold the names, types and
    shapes of the tensors and some of their values: reading tens of gigabytes at every start would
    cost more than it protects from. Small files count whole. Paths do not count, so that a copied
    base is the same base.

    Args:
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
    """Hash a file of weights by size and edges as `folder_identity` does; no name counts."""
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
