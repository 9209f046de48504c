"""ComfyUI's Chroma and its T5 at small sizes; ComfyUI's interpreter imports it.

ComfyUI takes the sizes of the published modulation for granted, and a T5 for the one of 4.7 billion
weights where it has 24 blocks.
"""

from types import SimpleNamespace

import comfy.model_detection
import comfy.sd
import comfy.utils
import torch
from comfy.text_encoders import pixart_t5

WIDTH = 128


def know_small_chroma():
    """Let ComfyUI load a Chroma of this width."""
    detect = comfy.model_detection.detect_unet_config

    def detect_small(*args, **options):
        found = detect(*args, **options)
        if found and found.get("image_model") == "chroma" and found["hidden_size"] == WIDTH:
            return {**found, "out_dim": WIDTH, "hidden_dim": WIDTH}
        return found

    comfy.model_detection.detect_unet_config = detect_small


def small_t5(path, sizes):
    """The CLIP of Chroma, of a text encoder of these sizes."""
    target = SimpleNamespace(
        params={}, clip=pixart_t5.pixart_te(), tokenizer=pixart_t5.PixArtTokenizer
    )
    state = comfy.utils.load_torch_file(path, safe_load=True)
    options = {"dtype": torch.float32, "t5xxl_model_config": sizes}
    return comfy.sd.CLIP(target, state_dict=[state], model_options=options)
