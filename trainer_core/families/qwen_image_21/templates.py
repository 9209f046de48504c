"""Run files for Qwen-Image 2.1, which generates without guidance."""

from __future__ import annotations

from ..run_files import FULL_SIZE, SUBJECT

_BASE = {"base.path": "Qwen/Qwen-Image-2.1", "preview.guidance": 1.0, "preview.steps": 40}
_GENERATE = {**_BASE, "base.variant": "generate"}

TEMPLATES = {
    "generate": {**FULL_SIZE, **_GENERATE},
    "edit_plus": {
        **FULL_SIZE,
        **_BASE,
        "base.variant": "edit_plus",
        "dataset.path": "pairs",
    },
    "subject": {**SUBJECT, **_GENERATE},
}
