"""The formats by name."""

from __future__ import annotations

from .int8 import Int8Rows
from .stored_format import StoredFormat

FORMATS: dict[str, StoredFormat] = {each.name: each for each in (Int8Rows(),)}
"""Those that a dense weight can be packed into, by the name in ``memory.base_format``."""
