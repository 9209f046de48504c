"""Run files for Krea 2: trained on the raw model, whose adapters work on turbo."""

from __future__ import annotations

from ..run_files import FULL_SIZE, SUBJECT

# ComfyUI samples raw and turbo with a fixed shift of e^1.15, unless ModelSamplingFlux says else;
# the preview samples raw as Diffusers does, with one that follows the image's size.
_RAW = {
    "base.path": "krea/Krea-2-Raw",
    "base.variant": "generate",
    "preview.guidance": 5.5,
}

TEMPLATES = {
    "generate": {**FULL_SIZE, **_RAW},
    "subject": {**SUBJECT, **_RAW},
}
