"""Run files for FLUX.2 klein and dev, to generate and to edit."""

from __future__ import annotations

from ..run_files import FULL_SIZE, SUBJECT

_KLEIN = {
    "base.path": "black-forest-labs/FLUX.2-klein-base-4B",
    "base.variant": "generate",
    "preview.guidance": 4.0,
}
_EDIT = {"base.variant": "edit", "dataset.path": "pairs"}
_DEV = {"base.path": "black-forest-labs/FLUX.2-dev"}

TEMPLATES = {
    "generate": {**FULL_SIZE, **_KLEIN},
    "subject": {**SUBJECT, **_KLEIN},
    "edit": {**FULL_SIZE, **_KLEIN, **_EDIT},
    "dev": {**FULL_SIZE, **_KLEIN, **_DEV},
    "dev_edit": {**FULL_SIZE, **_KLEIN, **_DEV, **_EDIT},
}

_MUSUBI = {"base.variant": "auto", "adapter.targets": "musubi"}

ELSEWHERE = {
    "ai-toolkit": {"flux2": {}, "flux2_klein_4b": {}, "flux2_klein_9b": {}},
    "musubi-tuner": {
        "flux_2": _MUSUBI,
        "flux_2 dev": _MUSUBI,
        "flux_2 klein-4b": _MUSUBI,
        "flux_2 klein-base-4b": _MUSUBI,
        "flux_2 klein-9b": _MUSUBI,
        "flux_2 klein-base-9b": _MUSUBI,
    },
    "OneTrainer": {"FLUX_2": {}},
    "diffusion-pipe": {"flux2": {}, "flux2 edit": {"base.variant": "edit"}},
    "qwen-image-finetune": {"Flux2Klein": {"base.variant": "edit"}},
}
"""Another trainer's name to its words for these bases, to what a run file says for them."""
