"""The picture preprocessing of the tiny vision tower."""

from __future__ import annotations

import json
from pathlib import Path

from transformers import Qwen2Tokenizer, Qwen2VLImageProcessorPil

# 28 x 28 pixels: one vision token, however large a pipeline makes the control picture before it
# asks. With one token the text encoder's grid positions equal plain counting, so the conditioning
# is the same in every version of transformers and Diffusers, whether they pass the grid or not.
PIXELS = 28 * 28


def new_image_processor() -> Qwen2VLImageProcessorPil:
    """Returns a processor that scales every picture to about 28 x 28 pixels."""
    return Qwen2VLImageProcessorPil(min_pixels=PIXELS, max_pixels=PIXELS)


def save_processor(tokenizer: Qwen2Tokenizer, folder: Path) -> None:
    """Writes the files from which ``Qwen2VLProcessor`` loads.

    The parts are written one by one, because the processor itself (for its
    video part) can only be created where torchvision is installed.

    Args:
        tokenizer: The tokenizer with its chat template.
        folder: Where the files go; created if missing.
    """
    tokenizer.save_pretrained(folder)
    images = new_image_processor()
    images.save_pretrained(folder)
    video = {
        "video_processor_type": "Qwen2VLVideoProcessor",
        "processor_class": "Qwen2VLProcessor",
        "size": {"shortest_edge": PIXELS, "longest_edge": PIXELS},
        "patch_size": images.patch_size,
        "temporal_patch_size": images.temporal_patch_size,
        "merge_size": images.merge_size,
        "image_mean": images.image_mean,
        "image_std": images.image_std,
    }
    text = json.dumps(video, indent=2) + "\n"
    (folder / "video_preprocessor_config.json").write_text(text, encoding="utf-8")
