"""Reads an adapter that is to be one of a known family, and refuses one that says otherwise."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from ..adapter_files.metadata import own_facts
from ..adapter_files.names.text_encoder_names import text_layers
from ..adapter_files.read.read_adapter import OpenAdapter, open_adapter
from ..errors import AdapterFileError
from ..families.registry import FAMILIES
from ..tensors.safetensors_reader import Source
from ..types import AdapterState

if TYPE_CHECKING:
    from ..families.family import Family


@contextmanager
def open_of_family(path: Path, family: Family) -> Iterator[OpenAdapter]:
    """Open an adapter of a family for the time of a block.

    Names and sizes do not tell twins apart (`BaseFiles.twin`), so what this trainer wrote into the
    header counts too; a model that a host lends is of no family by name.

    Raises:
        AdapterFileError: As `open_adapter`, and when the header says another family.
    """
    others = {each.title: each.layers.key_map for each in FAMILIES.values()}
    with open_adapter(path, family.layers.key_map, others) as adapter:
        name = own_facts(adapter.file.metadata).get("family")
        names = () if family.lent is not None else FAMILIES
        if isinstance(name, str) and name in names and name != family.name:
            raise AdapterFileError(
                f"{path} was trained on {FAMILIES[name].title}, as its header says",
                f"an adapter for {family.title}",
                f"Choose another file, or a base of {FAMILIES[name].title} for this one.",
            )
        yield adapter


def read_of_family(path: Path, family: Family) -> AdapterState:
    """As `open_of_family`, read as a whole; errors as there, and for values that are not finite."""
    with open_of_family(path, family) as adapter:
        state = adapter.state
        extras = {name: dict(tensors) for name, tensors in state.extras.items()}
        return replace(state, layers=dict(state.layers), extras=extras)


def changes_texts(source: Source, family: Family) -> bool:
    """Whether an adapter of a family has layers of a text encoder; its header alone is read.

    Raises:
        AdapterFileError: As `open_adapter`.
    """
    if family.text.trainable is None:
        return False
    with open_adapter(source, family.layers.key_map) as adapter:
        return bool(text_layers(adapter.state.layers))
