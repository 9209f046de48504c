"""Run files for FLUX.1 dev, Kontext and Fill."""

from __future__ import annotations

from ..run_files import FULL_SIZE, SUBJECT

_DEV = {
    "base.path": "black-forest-labs/FLUX.1-dev",
    "base.variant": "generate",
    "preview.guidance": 3.5,
}

TEMPLATES = {
    "generate": {**FULL_SIZE, **_DEV},
    "subject": {**SUBJECT, **_DEV},
    "fill": {
        **FULL_SIZE,
        "base.path": "black-forest-labs/FLUX.1-Fill-dev",
        "base.variant": "fill",
        "preview.guidance": 30.0,
    },
    "edit": {
        **FULL_SIZE,
        "base.path": "black-forest-labs/FLUX.1-Kontext-dev",
        "base.variant": "edit",
        "dataset.path": "pairs",
        "preview.guidance": 2.5,
    },
}
