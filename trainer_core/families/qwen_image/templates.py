"""Run files for Qwen-Image, its edit models and the tiny base that ships with the trainer."""

from __future__ import annotations

from ..run_files import FULL_SIZE, SUBJECT

_GENERATE = {
    "base.path": "Qwen/Qwen-Image-2512",
    "base.variant": "generate",
    "preview.guidance": 4.0,
}
_EDIT = {**FULL_SIZE, "dataset.path": "pairs", "preview.guidance": 4.0}
_TINY = {
    "base.path": "embedded",
    "dataset.path": "images",
    "dataset.resolution": 64,
    "dataset.preservation.share": 0.5,
    "adapter.rank": 16,
    "adapter.targets": "all_linear",
    "adapter.factor": 4,
    "training.batch_size": 16,
    "training.checkpoint_every": 100,
    "training.optimizer.learning_rate": 0.01,
    "training.schedule.name": "cosine",
    "training.schedule.warmup_steps": 20,
    "memory.gradient_checkpointing": False,
    "preview.width": 64,
    "preview.height": 64,
    "preview.guidance": 3.0,
}

TEMPLATES = {
    "generate": {**FULL_SIZE, **_GENERATE},
    "edit": {**_EDIT, "base.path": "Qwen/Qwen-Image-Edit", "base.variant": "edit"},
    "edit_plus": {
        **_EDIT,
        "base.path": "Qwen/Qwen-Image-Edit-2511",
        "base.variant": "edit_plus",
    },
    "layered": {
        **FULL_SIZE,
        "base.path": "Qwen/Qwen-Image-Layered",
        "base.variant": "layered",
        "dataset.path": "layered_images",
        # The size that its authors recommend.
        "dataset.resolution": 640,
        "preview.width": 640,
        "preview.height": 640,
        "preview.guidance": 4.0,
    },
    "subject": {**SUBJECT, **_GENERATE},
    "tiny": {
        **_TINY,
        "base.variant": "generate",
        "training.sigma.density": "shifted",
        "training.sigma.shift": 2.5,
    },
    "tiny_edit": {
        **_TINY,
        "base.variant": "edit",
        "dataset.path": "pairs",
        "training.sigma.density": "uniform",
    },
}

_ALL_OF_BLOCKS = {"adapter.targets": "musubi"}

ELSEWHERE = {
    "ai-toolkit": {
        "qwen_image": {"base.variant": "generate", **_ALL_OF_BLOCKS},
        "qwen_image_edit": {"base.variant": "edit", **_ALL_OF_BLOCKS},
        "qwen_image_edit_plus": {"base.variant": "edit_plus", **_ALL_OF_BLOCKS},
    },
    "musubi-tuner": {
        "qwen_image": {"base.variant": "generate", **_ALL_OF_BLOCKS},
        "qwen_image original": {"base.variant": "generate", **_ALL_OF_BLOCKS},
        "qwen_image layered": {"base.variant": "layered", **_ALL_OF_BLOCKS},
        "qwen_image edit": {"base.variant": "edit", **_ALL_OF_BLOCKS},
        "qwen_image edit-2509": {"base.variant": "edit_plus", **_ALL_OF_BLOCKS},
        "qwen_image edit-2511": {"base.variant": "edit_plus", **_ALL_OF_BLOCKS},
    },
    "OneTrainer": {"QWEN": {"base.variant": "generate"}},
    "diffusion-pipe": {
        "qwen_image": {"base.variant": "generate", **_ALL_OF_BLOCKS},
        "qwen_image edit": {"base.variant": "edit", **_ALL_OF_BLOCKS},
    },
    "qwen-image-finetune": {
        "QwenImageEdit": {"base.variant": "edit"},
        "QwenImageEditPlus": {"base.variant": "edit_plus"},
    },
    "FlyMyAI": {
        "generate": {"base.variant": "generate"},
        "edit": {"base.variant": "edit"},
    },
}
"""Another trainer's name to its words for these bases, to what a run file says for them."""
