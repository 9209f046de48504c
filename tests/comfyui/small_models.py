"""ComfyUI's models and text encoders at small sizes; ComfyUI's interpreter imports it.

ComfyUI takes a text encoder for one of published size by a width or a count of blocks, and a model
of the names of Z-Image for one that is 3840 wide, as it takes the modulation of Chroma for granted.
"""

from types import SimpleNamespace

import comfy.model_detection
import comfy.sd
import comfy.utils
import torch
from comfy.text_encoders import flux, krea2, pixart_t5, qwen3vl, z_image

CHROMA_WIDTH, Z_IMAGE_WIDTH = 128, 1152
_HEADS = Z_IMAGE_WIDTH // 128
_Z_IMAGE = {
    "n_heads": _HEADS,
    "n_kv_heads": _HEADS,
    "n_refiner_layers": 1,
    "axes_dims": [32, 48, 48],
    "axes_lens": [1536, 512, 512],
    "rope_theta": 256.0,
    "ffn_dim_multiplier": 8 / 3,
    "z_image_modulation": True,
    "time_scale": 1000.0,
    "pad_tokens_multiple": 32,
}
_VISION = {"hidden_size": 64, "intermediate_size": 96, "depth": 1, "deepstack_visual_indexes": [0]}
"""Of Krea 2's vision tower, which ComfyUI fixes; captions do not go through it."""

_CLIPS = {
    "chroma": (pixart_t5.pixart_te, pixart_t5.PixArtTokenizer, "t5xxl"),
    "krea2": (krea2.te, krea2.Krea2Tokenizer, "qwen3vl_4b"),
    "lumina2": (z_image.te, z_image.ZImageTokenizer, "qwen3_4b"),
    "flux2": (flux.klein_te, flux.KleinTokenizer, "qwen3_4b"),
}
"""What a loader's type makes, its tokenizer and ComfyUI's name of the text model."""


def know_small_models():
    """Let ComfyUI load a Chroma and a Z-Image of these widths."""
    detection = comfy.model_detection
    detect, configure = detection.detect_unet_config, detection.model_config_from_unet

    def detect_small(*args, **options):
        found = detect(*args, **options)
        if found and found.get("dim") == Z_IMAGE_WIDTH:
            return {**found, "dim": 3840, "small": True}
        if found and (found.get("image_model"), found.get("hidden_size")) == (
            "chroma",
            CHROMA_WIDTH,
        ):
            return {**found, "out_dim": CHROMA_WIDTH, "hidden_dim": CHROMA_WIDTH}
        return found

    def configure_small(*args, **options):
        found = configure(*args, **options)
        if found is not None and found.unet_config.pop("small", False):
            found.unet_config.update(_Z_IMAGE, dim=Z_IMAGE_WIDTH)
        return found

    detection.detect_unet_config = detect_small
    detection.model_config_from_unet = configure_small


def small_clip(kind, path, sizes):
    """The CLIP of a loader's type, of a text encoder of these sizes."""
    qwen3vl.QWEN3VL_VISION["qwen3vl_4b"] = _VISION
    make, tokenizer, name = _CLIPS[kind]
    target = SimpleNamespace(params={}, clip=make(), tokenizer=tokenizer)
    options = {"dtype": torch.float32, f"{name}_model_config": sizes}
    state = comfy.utils.load_torch_file(path, safe_load=True)
    return comfy.sd.CLIP(target, state_dict=[state], model_options=options)
