"""Adapter files: write, read, inspect."""

from .inspection import AdapterReport, inspect_adapter
from .keys import KeyMap, NativeKey
from .layouts import LAYOUTS
from .metadata import RunFacts, adapter_metadata
from .reading import read_adapter
from .writing import write_adapter

__all__ = [
    "LAYOUTS",
    "AdapterReport",
    "KeyMap",
    "NativeKey",
    "RunFacts",
    "adapter_metadata",
    "inspect_adapter",
    "read_adapter",
    "write_adapter",
]
