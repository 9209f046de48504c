"""Adapter files: write, read, inspect."""

from .inspection import AdapterReport, inspect_adapter
from .keys import KeyMap, NativeKey
from .layouts import LAYOUTS, layout_name
from .metadata import RunFacts, adapter_metadata
from .reading import (
    AdapterFile,
    OpenAdapter,
    adapter_files,
    open_adapter,
    open_file,
    read_adapter,
    read_file,
)
from .spellings import matching_families
from .writing import write_adapter

__all__ = [
    "LAYOUTS",
    "AdapterFile",
    "AdapterReport",
    "KeyMap",
    "NativeKey",
    "OpenAdapter",
    "RunFacts",
    "adapter_files",
    "adapter_metadata",
    "inspect_adapter",
    "layout_name",
    "matching_families",
    "open_adapter",
    "open_file",
    "read_adapter",
    "read_file",
    "write_adapter",
]
