"""Errors a user can act on.

Every message has three parts: what was found, what was expected, and what to do. The command line
prints them as they are; the class decides the exit code.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

RESUME = "resume=latest (in ComfyUI: run the graph again)"
"""How a remedy says to go on, wherever the run was started."""


class TrainerError(Exception):
    """Base of every error that the trainer raises on purpose.

    Args:
        found: What was found, with the file, the setting's YAML path or the layer by name.
    """

    exit_code = 1

    def __init__(self, found: str, expected: str, remedy: str) -> None:
        super().__init__(found, expected, remedy)
        self.found = found
        self.expected = expected
        self.remedy = remedy

    def __str__(self) -> str:
        return f"Found: {self.found}\nExpected: {self.expected}\nTo do: {self.remedy}"


class InputError(TrainerError):
    """Something that the user gave is wrong; no work was started or lost."""

    exit_code = 2


class ConfigError(InputError):
    """A setting of the run file is unknown, out of range or contradicts another."""


class DatasetError(InputError):
    """A dataset folder, image or caption cannot be used."""


class BaseModelError(InputError):
    """The base model is missing, incomplete or of an unknown family."""


class AdapterError(InputError):
    """An adapter setting does not fit the base: no target, a rank too large, a bad factor."""


class AdapterFileError(InputError):
    """An adapter file cannot be read, or its content does not fit."""


class CheckpointError(InputError):
    """A checkpoint is damaged: something of it is missing, cut short or changed."""


class RunError(TrainerError):
    """A run failed after it had started; the last good state is on disk."""


class StorageError(RunError):
    """A file could not be written: disk full, folder not writable, folder in use."""


class NonFiniteError(RunError):
    """The loss, a gradient or a weight is not finite."""


class PrecisionError(RunError):
    """A number format is too coarse for what was to be written in it."""


@contextmanager
def naming_file(source: object) -> Iterator[None]:
    """Let errors of an adapter that does not fit name its file.

    Args:
        source: The file, or what messages call the adapter.
    """
    try:
        yield
    except AdapterError as error:
        found = error.found if str(source) in error.found else f"{source}: {error.found}"
        raise type(error)(found, error.expected, error.remedy) from error
