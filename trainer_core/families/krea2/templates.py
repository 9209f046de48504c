"""Run files for Krea 2: trained on the raw model, whose adapters work on turbo."""

from __future__ import annotations

from ..run_files import FULL_SIZE, SUBJECT

# ComfyUI samples raw and turbo alike with a fixed shift of e^1.15, unless ModelSamplingFlux says
# else. Previews of raw are sampled as in Diffusers, with a shift that follows the image's size: at
# 1024 x 1024 it is e^0.91, for which that node's max_shift is 0.91.
_RAW = {
    "base.path": "krea/Krea-2-Raw",
    "base.variant": "generate",
    "preview.guidance": 5.5,
}

TEMPLATES = {
    "generate": {**FULL_SIZE, **_RAW},
    "subject": {**SUBJECT, **_RAW},
}

ELSEWHERE = {
    "ai-toolkit": {"krea2": {}},
    "musubi-tuner": {"krea2": {}},
    "OneTrainer": {"KREA_2": {}},
    "diffusion-pipe": {"krea2": {}},
}
"""Another trainer's name to its words for this base, to what a run file says for it."""
