"""Run files for Wan."""

from __future__ import annotations

from ..run_files import FULL_SIZE, SUBJECT

_BASE = {
    "base.path": "Wan-AI/Wan2.1-T2V-14B-Diffusers",
    "base.variant": "generate",
    "dataset.resolution": 384,
    "preview.guidance": 5.0,
    "preview.width": 384,
    "preview.height": 384,
}

TEMPLATES = {
    "generate": {**FULL_SIZE, **_BASE},
    "subject": {**SUBJECT, **_BASE},
}
