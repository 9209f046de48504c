"""The keys of ai-toolkit's run files, in ``keys/ai_toolkit.txt``."""

from __future__ import annotations

from typing import Any

from .rules import text, word_of
from .table_text import read_tables

BASE_FORMAT = word_of(
    {
        **dict.fromkeys(("qfloat8", "float8", "float8_e4m3fn", "fp8"), "fp8"),
        **dict.fromkeys(("qint8", "int8", "uint8", "uint7", "uint6", "convrot8"), "int8"),
        **dict.fromkeys(("uint5", "qint4", "int4", "convrot4"), "nf4"),
        "uint4": "uint4",
        "uint3": "uint3",
        "uint2": "uint3",
    }
)

OLDER_MODELS = {
    "is_flux": "flux",
    **{f"is_{name}": name for name in ("xl", "v3", "v2", "pixart", "pixart_sigma", "auraflow")},
    "is_lumina2": "lumina2",
}
"""Keys that said the architecture before ``arch`` did, to its word."""


def _extension(value: Any) -> str:
    found = text(value).strip()
    return found if found.startswith(".") else f".{found}"


TABLES = read_tables("ai_toolkit", extension=_extension)
