"""What a tiny MODEL of each of ComfyUI's classes is made of.

Only sizes differ from what ComfyUI finds in published files: widths, heads and counts of blocks.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

WIDTH = 32
"""Of the texts, and of the transformers where nothing asks for more."""

SD3_TEXT = 4096
"""ComfyUI fills the texts of SD3's two CLIPs up to it."""

_AXES = [4, 6, 6]
_UNET_PIXELS = 96
"""Where the middle block has more than one token; the attention of one has no gradient."""

_PIXART_PIXELS = 320
"""PixArt divides by zero where an image's sides are 256 or less."""


@dataclass(frozen=True)
class TinySizes:
    """One tiny MODEL, with the CLIP and the VAE that fit it.

    Attributes:
        config: Name of the class in ``comfy.supported_models``.
        unet: Its ``unet_config``.
        text: Name of the CLIP (`texts.KINDS`).
        vae: Name of the VAE (`vaes.KINDS`).
        marks: Entries of a state dict by which the class chooses its kind of prediction.
        pixels: Sides of an image in the tests.
    """

    config: str
    unet: Mapping[str, Any]
    text: str
    vae: str
    marks: Mapping[str, Any] = field(default_factory=dict)
    pixels: int = 64


_UNET = {
    "image_size": 32,
    "use_checkpoint": False,
    "use_spatial_transformer": True,
    "legacy": False,
    "in_channels": 4,
    "out_channels": 4,
    "model_channels": WIDTH,
    "context_dim": WIDTH,
}
_SD = {
    **_UNET,
    "num_res_blocks": [2, 2, 2, 2],
    "channel_mult": [1, 1, 2, 2],
    "transformer_depth": [1, 1, 1, 1, 1, 1, 0, 0],
    "transformer_depth_output": [1, 1, 1, 1, 1, 1, 1, 1, 1, 0, 0, 0],
    "transformer_depth_middle": 1,
}
_SDXL = {
    **_UNET,
    "num_res_blocks": [2, 2, 2],
    "channel_mult": [1, 1, 2],
    "transformer_depth": [0, 0, 1, 1, 2, 2],
    "transformer_depth_output": [0, 0, 0, 1, 1, 1, 2, 2, 2],
    "transformer_depth_middle": 2,
    "num_head_channels": 16,
    "num_classes": "sequential",
    "adm_in_channels": WIDTH // 2 + 6 * 256,
}
_FLUX = {
    "in_channels": 16,
    "out_channels": 16,
    "context_in_dim": WIDTH,
    "vec_in_dim": WIDTH,
    "hidden_size": WIDTH,
    "num_heads": 2,
    "depth": 2,
    "depth_single_blocks": 2,
    "mlp_ratio": 4.0,
    "axes_dim": _AXES,
    "theta": 10000,
    "patch_size": 2,
    "qkv_bias": True,
    "txt_ids_dims": [],
}
_FLUX2 = {
    **_FLUX,
    "in_channels": 128,
    "out_channels": 128,
    "vec_in_dim": None,
    "axes_dim": [4, 4, 4, 4],
    "theta": 2000,
    "patch_size": 1,
    "mlp_ratio": 3.0,
    "guidance_embed": True,
    "global_modulation": True,
    "mlp_silu_act": True,
    "qkv_bias": False,
    "ops_bias": False,
    "default_ref_method": "index",
    "ref_index_scale": 10.0,
    "txt_ids_dims": [3],
}
_CHROMA = {
    **_FLUX,
    "in_channels": 64,
    "out_channels": 64,
    "vec_in_dim": None,
    "in_dim": 64,
    "out_dim": WIDTH,
    "hidden_dim": WIDTH,
    "n_layers": 2,
}
_LUMINA = {
    "patch_size": 2,
    "in_channels": 16,
    "dim": WIDTH,
    "cap_feat_dim": WIDTH,
    "n_layers": 2,
    "n_refiner_layers": 1,
    "n_heads": 2,
    "n_kv_heads": 1,
    "multiple_of": 32,
    "ffn_dim_multiplier": 4.0,
    "qk_norm": True,
    "axes_dims": _AXES,
    "axes_lens": [300, 512, 512],
    "rope_theta": 10000.0,
}
_Z_IMAGE = {
    **_LUMINA,
    # What modulates its blocks has 256 numbers, and no fewer.
    "dim": 256,
    "n_heads": 4,
    "n_kv_heads": 4,
    "axes_dims": [16, 24, 24],
    "rope_theta": 256.0,
    "ffn_dim_multiplier": 8.0 / 3.0,
    "z_image_modulation": True,
    "time_scale": 1000.0,
    "pad_tokens_multiple": 32,
}
_SD3 = {
    "in_channels": 16,
    "out_channels": 16,
    "patch_size": 2,
    "depth": 2,
    "input_size": None,
    "adm_in_channels": WIDTH,
    "context_embedder_config": {
        "target": "torch.nn.Linear",
        "params": {"in_features": SD3_TEXT, "out_features": 128},
    },
    "num_patches": 64,
    "pos_embed_max_size": 8,
    "pos_embed_scaling_factor": None,
    "qk_norm": "rms",
    "x_block_self_attn_layers": [0],
}
_QWEN = {
    "in_channels": 64,
    "out_channels": 16,
    "num_layers": 2,
    "attention_head_dim": 16,
    "num_attention_heads": 2,
    "joint_attention_dim": WIDTH,
    "axes_dims_rope": _AXES,
}
_WAN = {
    "dim": WIDTH,
    "ffn_dim": 64,
    "text_dim": WIDTH,
    "freq_dim": 256,
    "in_dim": 16,
    "out_dim": 16,
    "num_heads": 2,
    "num_layers": 2,
    "patch_size": (1, 2, 2),
    "cross_attn_norm": True,
    "qk_norm": True,
}
_HUNYUAN = {
    **{name: value for name, value in _FLUX.items() if name != "txt_ids_dims"},
    "patch_size": [1, 2, 2],
    "theta": 256,
    "guidance_embed": True,
    "byt5": False,
    "meanflow": False,
    "use_cond_type_embedding": False,
    "vision_in_dim": None,
    "meanflow_sum": False,
}
_LTX = {
    "in_channels": 128,
    "cross_attention_dim": WIDTH,
    "attention_head_dim": 16,
    "num_attention_heads": 2,
    "caption_channels": WIDTH,
    "num_layers": 2,
}
_KREA = {
    "features": WIDTH,
    "tdim": 32,
    "txtdim": WIDTH // 2,
    "heads": 2,
    "kvheads": 1,
    "layers": 2,
    "txtlayers": 2,
    "txtheads": 2,
    "txtkvheads": 2,
}
_COSMOS = {
    "max_img_h": 240,
    "max_img_w": 240,
    "max_frames": 128,
    "in_channels": 16,
    "out_channels": 16,
    "patch_spatial": 2,
    "patch_temporal": 1,
    "model_channels": WIDTH,
    "num_blocks": 2,
    "num_heads": 2,
    "crossattn_emb_channels": WIDTH,
    "pos_emb_cls": "rope3d",
    "pos_emb_learnable": True,
    "use_adaln_lora": True,
    "adaln_lora_dim": 8,
    "extra_per_block_abs_pos_emb": False,
    "rope_h_extrapolation_ratio": 4.0,
    "rope_w_extrapolation_ratio": 4.0,
    "rope_enable_fps_modulation": False,
}
_HIDREAM = {
    "patch_size": 2,
    "in_channels": 16,
    "out_channels": 16,
    "num_layers": 2,
    "num_single_layers": 2,
    "attention_head_dim": 16,
    "num_attention_heads": 2,
    "caption_channels": [WIDTH, WIDTH],
    "text_emb_dim": WIDTH,
    "axes_dims_rope": [8, 4, 4],
    "llama_layers": [0, 1, 1, 1],
}
_KANDINSKY = {
    "model_dim": WIDTH,
    "visual_embed_dim": 16 * 2 * 2,
    "in_text_dim": WIDTH,
    "in_text_dim2": WIDTH,
    "time_dim": WIDTH,
    "ff_dim": 64,
    "num_text_blocks": 1,
    "num_visual_blocks": 2,
    "axes_dims": _AXES,
    "rope_scale_factor": (1.0, 1.0, 1.0),
}
_AURA = {
    "dim": WIDTH,
    "n_layers": 3,
    "n_double_layers": 1,
    "n_heads": 2,
    "global_conddim": WIDTH,
    "cond_seq_dim": WIDTH,
    "max_seq": 256,
}
_PIXART = {
    "input_size": 16,
    "pe_interpolation": 1,
    # A third of it is for each number of the image's size.
    "hidden_size": 48,
    "depth": 2,
    "num_heads": 2,
    "caption_channels": WIDTH,
    "model_max_length": 77,
}
_IDEOGRAM = {
    "in_channels": 128,
    "num_layers": 2,
    "num_attention_heads": 2,
    "attention_head_dim": 16,
    "intermediate_size": 64,
    "adaln_dim": WIDTH,
    "llm_features_dim": WIDTH,
    "mrope_section": (4, 2, 2),
}

TINY: Mapping[str, TinySizes] = MappingProxyType(
    {
        "sd15": TinySizes("SD15", _SD | {"num_heads": 2}, "sd1", "kl4", pixels=_UNET_PIXELS),
        "sd2_v": TinySizes(
            "SD20",
            _SD | {"num_head_channels": 16},
            "sd2",
            "kl4",
            {"output_blocks.11.1.transformer_blocks.0.norm1.bias": (-1.0, 1.0)},
            pixels=_UNET_PIXELS,
        ),
        "sdxl": TinySizes("SDXL", _SDXL, "sdxl", "kl4"),
        "sdxl_v_zsnr": TinySizes("SDXL", _SDXL, "sdxl", "kl4", {"v_pred": (), "ztsnr": ()}),
        "sdxl_edm": TinySizes("SDXL", _SDXL, "sdxl", "kl4", {"edm_mean": (), "edm_std": ()}),
        "sdxl_edm_v": TinySizes(
            "SDXL",
            _SDXL,
            "sdxl",
            "kl4",
            {"edm_vpred.sigma_max": 120.0, "edm_vpred.sigma_min": 0.002},
        ),
        "ssd1b": TinySizes("SSD1B", _SDXL | {"transformer_depth_middle": -1}, "sdxl", "kl4"),
        "sd3": TinySizes("SD3", _SD3, "sd3", "kl16"),
        "flux": TinySizes("Flux", _FLUX | {"guidance_embed": True}, "flux", "kl16"),
        "flux_schnell": TinySizes("FluxSchnell", _FLUX | {"guidance_embed": False}, "flux", "kl16"),
        "flux2": TinySizes("Flux2", _FLUX2, "plain", "kl128"),
        "chroma": TinySizes("Chroma", _CHROMA, "plain", "kl16"),
        "z_image": TinySizes("ZImage", _Z_IMAGE, "masked", "kl16"),
        "lumina2": TinySizes("Lumina2", _LUMINA, "padded", "kl16"),
        "qwen_image": TinySizes("QwenImage", _QWEN, "plain", "wan"),
        "wan21": TinySizes("WAN21_T2V", _WAN | {"model_type": "t2v"}, "plain", "wan"),
        "hunyuan_video": TinySizes("HunyuanVideo", _HUNYUAN, "pooled_masked", "wan"),
        "ltxv": TinySizes("LTXV", _LTX, "padded", "ltx"),
        "krea2": TinySizes("Krea2", _KREA, "plain", "wan"),
        "anima": TinySizes("Anima", _COSMOS, "anima", "wan"),
        "cosmos_predict2": TinySizes("CosmosT2IPredict2", _COSMOS, "plain", "wan"),
        "hidream": TinySizes("HiDream", _HIDREAM, "hidream", "kl16"),
        "kandinsky5_image": TinySizes("Kandinsky5Image", _KANDINSKY, "pooled_masked", "kl16"),
        "auraflow": TinySizes("AuraFlow", _AURA, "plain", "kl4"),
        "pixart_alpha": TinySizes(
            "PixArtAlpha",
            _PIXART | {"micro_condition": True},
            "plain",
            "kl4",
            pixels=_PIXART_PIXELS,
        ),
        "pixart_sigma": TinySizes(
            "PixArtSigma",
            _PIXART | {"micro_condition": False},
            "plain",
            "kl4",
            pixels=_PIXART_PIXELS,
        ),
        "ideogram4": TinySizes("Ideogram4", _IDEOGRAM, "masked", "kl128"),
    }
)
"""Every tiny MODEL by its name."""
