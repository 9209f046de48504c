"""The files of ``base.adapters``: found, of the base's family, and read."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from ..adapter_files.factors.outlines import outlines_of, patch_outline
from ..adapter_files.factors.put_on_base import BaseAdapterFile
from ..adapter_files.read.read_adapter import OpenAdapter
from ..config import BaseAdapter, BaseSection
from ..errors import AdapterFileError, BaseModelError, InputError
from ..filesystem.storage import given_path
from ..types import AdapterState
from .read_family_adapter import open_of_family, read_of_family

if TYPE_CHECKING:
    from ..families.family import Family


def read_base_adapters(settings: BaseSection, family: Family) -> tuple[BaseAdapterFile, ...]:
    """Read the adapters of a run file's ``base`` section, a part of the base while it trains.

    Raises:
        BaseModelError: When a file is not there, or cannot be read as an adapter of the family.
    """
    found: list[BaseAdapterFile] = []
    for place, each in _places(settings):
        with _told(place, each, family):
            state = read_of_family(Path(each.path), family)
        name = Path(each.path).name
        found.append(BaseAdapterFile(place, name, state, strength=each.strength, when=each.when))
    return tuple(found)


def outline_base_adapters(settings: BaseSection, family: Family) -> tuple[BaseAdapterFile, ...]:
    """As `read_base_adapters`, with shapes alone: no value is kept."""
    found: list[BaseAdapterFile] = []
    for place, each in _places(settings):
        with (
            _told(place, each, family),
            open_of_family(Path(each.path), family) as adapter,
        ):
            name = Path(each.path).name
            state = _outlines(adapter)
            found.append(
                BaseAdapterFile(place, name, state, strength=each.strength, when=each.when)
            )
    return tuple(found)


def _outlines(adapter: OpenAdapter) -> AdapterState:
    state = adapter.state
    extras = {name: patch_outline(state, name) for name in state.extras}
    return replace(state, layers=outlines_of(state), extras=extras)


def _places(settings: BaseSection) -> Iterator[tuple[str, BaseAdapter]]:
    for number, each in enumerate(settings.adapters):
        yield f"base.adapters.{number}", each


@contextmanager
def _told(place: str, adapter: BaseAdapter, family: Family) -> Iterator[None]:
    """Name the setting in what is wrong with its file."""
    wanted = f"an adapter file (.safetensors) for {family.title}, or a folder that PEFT saved"
    try:
        path = given_path(adapter.path, wanted)
    except InputError as error:
        raise BaseModelError(f"{place}: {error.found}", error.expected, error.remedy) from error
    if not path.exists():
        raise BaseModelError(
            f"{place}: there is no file {adapter.path}",
            wanted,
            "Correct the path, or leave the adapter out of base.adapters.",
        )
    try:
        yield
    except AdapterFileError as error:
        raise BaseModelError(f"{place}: {error.found}", error.expected, error.remedy) from error
