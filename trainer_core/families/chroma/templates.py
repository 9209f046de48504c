"""Run files for Chroma1."""

from __future__ import annotations

from ..run_files import FULL_SIZE, SUBJECT

_HD = {
    "base.path": "lodestones/Chroma1-HD",
    "base.variant": "generate",
    "preview.guidance": 3.5,
}

TEMPLATES = {"generate": {**FULL_SIZE, **_HD}, "subject": {**SUBJECT, **_HD}}

ELSEWHERE = {
    "ai-toolkit": {"chroma": {}},
    "sd-scripts": {"flux_train_network.py --model_type chroma": {}},
    "OneTrainer": {"CHROMA_1": {}},
    "diffusion-pipe": {"chroma": {}},
}
"""Another trainer's name to its words for this base, to what a run file says for it."""
