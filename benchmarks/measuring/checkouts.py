"""Modules of a trainer's source tree, without installing the trainer.

A layer's arithmetic seldom needs what its file imports: quantization libraries, a host's memory
management, a configuration. Such an import gets a placeholder whose every name is an empty class.
The layer's own code is the trainer's own; were a placeholder needed by what is measured, it would
raise an error.
"""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any


class NotHereError(Exception):
    """A peer that cannot be measured, and why."""


class _Placeholder(ModuleType):
    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.__path__ = []

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return type(name, (), {})


def checkout(variable: str, default: str | None, mark: str) -> Path:
    """Where a peer's source lies.

    Args:
        variable: The environment variable that names the folder.
        default: Where to look when it is not set.
        mark: A file that the folder must have.

    Raises:
        NotHereError: When it is not there.
    """
    named = os.environ.get(variable) or default
    if not named:
        raise NotHereError(f"{variable} is not set")
    root = Path(named).expanduser()
    if not (root / mark).is_file():
        raise NotHereError(f"{variable} names no source tree with {mark}")
    return root


def load_modules(
    packages: Mapping[str, Path], placeholders: Sequence[str], wanted: Sequence[str]
) -> list[ModuleType]:
    """Import modules from folders that are not on the path.

    Args:
        packages: Package name to its folder; its own ``__init__`` is not run.
        placeholders: Modules that are replaced.
        wanted: What to import.

    Returns:
        The modules, in the order of `wanted`. None of them stays importable by name.

    Raises:
        NotHereError: When one of them cannot be imported here.
    """
    roots = {name.partition(".")[0] for name in (*packages, *placeholders)}
    with _set_aside(roots):
        for name, folder in packages.items():
            sys.modules[name] = package = ModuleType(name)
            package.__path__ = [str(folder)]
        for name in placeholders:
            sys.modules[name] = _Placeholder(name)
            parent, _, leaf = name.rpartition(".")
            if parent in sys.modules:
                setattr(sys.modules[parent], leaf, sys.modules[name])
        try:
            return [importlib.import_module(name) for name in wanted]
        except (ImportError, AttributeError, TypeError) as error:
            raise NotHereError(f"{type(error).__name__} on import: {error}") from error


@contextmanager
def _set_aside(roots: set[str]) -> Iterator[None]:
    """Forget what is imported below some names for a while, and what is imported meanwhile."""

    def below() -> list[str]:
        return [name for name in sys.modules if name.partition(".")[0] in roots]

    before = {name: sys.modules.pop(name) for name in below()}
    try:
        yield
    finally:
        for name in below():
            del sys.modules[name]
        sys.modules.update(before)
