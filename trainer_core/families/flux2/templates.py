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
