"""Run files for FLUX.1 dev, Kontext, Fill and schnell."""

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
    "schnell": {
        **FULL_SIZE,
        "base.path": "black-forest-labs/FLUX.1-schnell",
        "base.variant": "generate",
        "base.adapters": [{"path": "training_adapter.safetensors", "when": "training"}],
        "preview.steps": 4,
        "preview.guidance": 1.0,
    },
}

_ALL_OF_BLOCKS = {"adapter.targets": [r"(single_)?transformer_blocks\..*"]}

ELSEWHERE = {
    "ai-toolkit": {
        "flux": {"base.variant": "generate", **_ALL_OF_BLOCKS},
        "flux_kontext": {"base.variant": "edit", **_ALL_OF_BLOCKS},
    },
    "musubi-tuner": {"flux_kontext": {"base.variant": "edit", "adapter.targets": "musubi"}},
    "sd-scripts": {"flux_train_network.py": {"base.variant": "generate", **_ALL_OF_BLOCKS}},
    "OneTrainer": {
        "FLUX_DEV_1": {"base.variant": "generate"},
        "FLUX_FILL_DEV_1": {"base.variant": "fill"},
    },
    "diffusion-pipe": {
        "flux": {"base.variant": "generate", **_ALL_OF_BLOCKS},
        "flux edit": {"base.variant": "edit", **_ALL_OF_BLOCKS},
    },
    "qwen-image-finetune": {"FluxKontext": {"base.variant": "edit"}},
}
"""Another trainer's name to its words for these bases, to what a run file says for them."""
