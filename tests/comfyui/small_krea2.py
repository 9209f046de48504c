"""ComfyUI's Qwen3-VL of Krea 2 at a small size; ComfyUI's interpreter imports it."""

from types import SimpleNamespace

import comfy.sd
import comfy.utils
import torch
from comfy.text_encoders import krea2, qwen3vl

VISION = {
    "hidden_size": 64,
    "intermediate_size": 96,
    "depth": 1,
    "deepstack_visual_indexes": [0],
}
"""Of the vision tower, which ComfyUI fixes; captions do not go through it."""


def small_clip(path, sizes):
    """The CLIP of Krea 2, of a text encoder of these sizes."""
    qwen3vl.QWEN3VL_VISION["qwen3vl_4b"] = VISION
    target = SimpleNamespace(params={}, clip=krea2.te(), tokenizer=krea2.Krea2Tokenizer)
    state = comfy.utils.load_torch_file(path, safe_load=True)
    options = {"dtype": torch.float32, "qwen3vl_4b_model_config": sizes}
    return comfy.sd.CLIP(target, state_dict=[state], model_options=options)
