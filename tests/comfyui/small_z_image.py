"""ComfyUI's Z-Image and Qwen3-4B at small sizes; ComfyUI's interpreter imports it.

ComfyUI takes a model of these names for Z-Image where it is 3840 wide, and a Qwen3 for the one of 4
billion weights where it is 2560 wide.
"""

from types import SimpleNamespace

import comfy.model_detection
import comfy.sd
import comfy.utils
import torch
from comfy.text_encoders import flux, z_image

WIDTH = 1152
HEADS = WIDTH // 128
PUBLISHED = {
    "n_heads": HEADS,
    "n_kv_heads": HEADS,
    "n_refiner_layers": 1,
    "axes_dims": [32, 48, 48],
    "axes_lens": [1536, 512, 512],
    "rope_theta": 256.0,
    "ffn_dim_multiplier": 8 / 3,
    "z_image_modulation": True,
    "time_scale": 1000.0,
    "pad_tokens_multiple": 32,
}


def know_small_z_image():
    """Let ComfyUI load a Z-Image of this width."""
    detection = comfy.model_detection
    detect, configure = detection.detect_unet_config, detection.model_config_from_unet

    def is_small(found):
        return found is not None and found.get("dim") == WIDTH

    def detect_small(*args, **options):
        found = detect(*args, **options)
        return {**found, "dim": 3840, "small": True} if is_small(found) else found

    def configure_small(*args, **options):
        found = configure(*args, **options)
        if found is not None and found.unet_config.pop("small", False):
            found.unet_config.update(PUBLISHED, dim=WIDTH)
        return found

    detection.detect_unet_config = detect_small
    detection.model_config_from_unet = configure_small


def small_clip(path, sizes, kind="lumina2"):
    """The CLIP of Z-Image, or of FLUX.2 klein 4B, of a text encoder of these sizes."""
    clip, tokenizer = z_image.te(), z_image.ZImageTokenizer
    if kind == "flux2":
        clip, tokenizer = flux.klein_te(), flux.KleinTokenizer
    target = SimpleNamespace(params={}, clip=clip, tokenizer=tokenizer)
    state = comfy.utils.load_torch_file(path, safe_load=True)
    options = {"dtype": torch.float32, "qwen3_4b_model_config": sizes}
    return comfy.sd.CLIP(target, state_dict=[state], model_options=options)
