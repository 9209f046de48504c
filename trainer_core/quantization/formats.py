"""The formats that ``memory.base_format`` packs weights into, by name."""

from __future__ import annotations

from .fp8 import Fp8
from .int8 import Int8Rows, RotatedInt8Rows
from .nf4 import Nf4
from .stored_format import StoredFormat
from .unsigned_groups import Uint3, Uint4

FORMATS: dict[str, StoredFormat] = {
    each.name: each
    for each in (Int8Rows(), Fp8("rows"), RotatedInt8Rows(), Nf4(), Uint4(), Uint3())
}
"""Those that a dense weight can be packed into, by the name in ``memory.base_format``. Of two that
take the same, the more exact one is first: a plan takes it."""
