"""Adapter files: read, write, convert, prove, change.

In the order of the data flow; each list begins with the module that calls the others:

- reading: `reading`, then `lazy` (the file), `spellings` (its keys), `unread` (those that are no
  factors), `content` and `structure` (its layers), `peft_config` (its scale), `placing`,
  `splitting` and `undivided` (the family's names);
- writing: `writing`, then `layouts` (a function for each), `baking`, `fusing`, `peft_folder`,
  `pieces`, `metadata` and `workflow` (the header);
- converting: `converting`, then `changing`, `approximating`, `kept_header`;
- proving: `proof`, then `host_names`, `host_reading` and `host_arithmetic` (what ComfyUI does with
  a file), `proof_comparison`, `proof_changes`, `proof_result`;
- changing: `combining`, `extracting`, `resizing`, `merging`, with `low_rank`, `products` and
  `rounding`;
- telling: `inspection`, with `delta_norm`.

A family's names come as a `KeyMap`. Why it is so: docs/decisions/0012-adapter-files.md.
"""

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
