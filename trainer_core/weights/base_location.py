"""Where the files of a base are."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

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
        variant: ``generate``, ``edit`` or ``edit_plus``; never ``auto``.
        text_length: Most text tokens that the encoder yields.
        identity: Hash of everything that decides what the encoders yield; part of cache keys. The
            precision that they run in is not known here.
        embedded: Whether this is the tiny base that ships with the trainer.
        file: The single file with the transformer's weights; None when they are in ``folder``.
    """

    folder: Path
    encoders: Path
    variant: str
    text_length: int
    identity: str
    embedded: bool
    file: Path | None = None
