"""Run files for Z-Image."""

from __future__ import annotations

from ..run_files import FULL_SIZE, SUBJECT

_BASE = {
    "base.path": "Tongyi-MAI/Z-Image",
    "base.variant": "generate",
    "preview.guidance": 4.0,
}

TEMPLATES = {
    "generate": {**FULL_SIZE, **_BASE},
    "subject": {**SUBJECT, **_BASE},
}

ELSEWHERE = {
    "ai-toolkit": {"zimage": {}},
    "musubi-tuner": {"zimage": {"adapter.targets": "musubi"}},
    "OneTrainer": {"Z_IMAGE": {}},
    "diffusion-pipe": {"z_image": {}},
}
"""Another trainer's name to its words for this base, to what a run file says for it."""
