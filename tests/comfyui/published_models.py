"""Runs inside ComfyUI's interpreter: its model classes at the sizes that were published.

No weight is made: everything lies on the meta device. What a class takes for a size is what
ComfyUI's own detection (``comfy/model_detection.py``) finds in the published files.
"""

import importlib

_FLUX = {
    "patch_size": 2,
    "in_channels": 16,
    "out_channels": 16,
    "vec_in_dim": 768,
    "context_in_dim": 4096,
    "hidden_size": 3072,
    "mlp_ratio": 4.0,
    "num_heads": 24,
    "depth": 19,
    "depth_single_blocks": 38,
    "axes_dim": [16, 56, 56],
    "theta": 10000,
    "qkv_bias": True,
    "guidance_embed": True,
    "txt_ids_dims": [],
}
_UNET = {
    "image_size": 32,
    "out_channels": 4,
    "use_spatial_transformer": True,
    "legacy": False,
    "in_channels": 4,
    "model_channels": 320,
    "use_temporal_attention": False,
    "use_temporal_resblock": False,
}
_FOUR_LEVELS = {
    "num_res_blocks": [2, 2, 2, 2],
    "transformer_depth": [1, 1, 1, 1, 1, 1, 0, 0],
    "channel_mult": [1, 2, 4, 4],
    "transformer_depth_middle": 1,
    "transformer_depth_output": [1, 1, 1, 1, 1, 1, 1, 1, 1, 0, 0, 0],
    "adm_in_channels": None,
}
UNETS = {
    "sd15": {
        **_UNET,
        **_FOUR_LEVELS,
        "use_linear_in_transformer": False,
        "context_dim": 768,
        "num_heads": 8,
    },
    "sd21": {
        **_UNET,
        **_FOUR_LEVELS,
        "use_linear_in_transformer": True,
        "context_dim": 1024,
        "num_head_channels": 64,
    },
    "sdxl": {
        **_UNET,
        "num_classes": "sequential",
        "adm_in_channels": 2816,
        "num_res_blocks": [2, 2, 2],
        "transformer_depth": [0, 0, 2, 2, 10, 10],
        "channel_mult": [1, 2, 4],
        "transformer_depth_middle": 10,
        "use_linear_in_transformer": True,
        "context_dim": 2048,
        "num_head_channels": 64,
        "transformer_depth_output": [0, 0, 0, 2, 2, 2, 10, 10, 10],
    },
}
"""Of the classic UNet, the configurations that ComfyUI knows the models by."""

_COSMOS = {
    "max_img_h": 240,
    "max_img_w": 240,
    "max_frames": 128,
    "in_channels": 16,
    "out_channels": 16,
    "patch_spatial": 2,
    "patch_temporal": 1,
    "pos_emb_cls": "rope3d",
    "use_adaln_lora": True,
    "adaln_lora_dim": 256,
}
_PREDICT2 = {**_COSMOS, "model_channels": 2048, "num_blocks": 28, "num_heads": 16}
_LUMINA = {"patch_size": 2, "in_channels": 16, "qk_norm": True}

MODELS = {
    **{
        name: ("modules.diffusionmodules.openaimodel:UNetModel", config)
        for name, config in UNETS.items()
    },
    "sd3_medium": (
        "modules.diffusionmodules.mmdit:OpenAISignatureMMDITWrapper",
        {
            "input_size": None,
            "in_channels": 16,
            "depth": 24,
            "num_blocks": 24,
            "adm_in_channels": 2048,
            "context_embedder_config": {
                "target": "torch.nn.Linear",
                "params": {"in_features": 4096, "out_features": 1536},
            },
            "num_patches": 36864,
            "pos_embed_max_size": 192,
            "pos_embed_scaling_factor": None,
        },
    ),
    "flux": ("flux.model:Flux", _FLUX),
    "flux2": (
        "flux.model:Flux",
        {
            **_FLUX,
            "patch_size": 1,
            "in_channels": 128,
            "out_channels": 128,
            "vec_in_dim": None,
            "context_in_dim": 15360,
            "hidden_size": 6144,
            "mlp_ratio": 3.0,
            "num_heads": 48,
            "depth": 8,
            "depth_single_blocks": 48,
            "axes_dim": [32, 32, 32, 32],
            "qkv_bias": False,
            "txt_ids_dims": [3],
            "global_modulation": True,
            "mlp_silu_act": True,
            "ops_bias": False,
        },
    ),
    "chroma": (
        "chroma.model:Chroma",
        {
            **{k: v for k, v in _FLUX.items() if k != "guidance_embed"},
            "in_channels": 64,
            "out_channels": 64,
            "in_dim": 64,
            "out_dim": 3072,
            "hidden_dim": 5120,
            "n_layers": 5,
        },
    ),
    "lumina2": (
        "lumina.model:NextDiT",
        {
            **_LUMINA,
            "dim": 2304,
            "n_layers": 26,
            "cap_feat_dim": 2304,
            "n_heads": 24,
            "n_kv_heads": 8,
            "axes_dims": [32, 32, 32],
        },
    ),
    "z_image": (
        "lumina.model:NextDiT",
        {
            **_LUMINA,
            "dim": 3840,
            "n_layers": 30,
            "cap_feat_dim": 2560,
            "n_heads": 30,
            "n_kv_heads": 30,
            "axes_dims": [32, 48, 48],
            "ffn_dim_multiplier": 8.0 / 3.0,
            "z_image_modulation": True,
            "pad_tokens_multiple": 32,
        },
    ),
    "qwen_image": ("qwen_image.model:QwenImageTransformer2DModel", {"num_layers": 60}),
    "wan21": (
        "wan.model:WanModel",
        {"dim": 5120, "ffn_dim": 13824, "num_heads": 40, "num_layers": 40},
    ),
    "hunyuan_video": (
        "hunyuan_video.model:HunyuanVideo",
        {
            **{k: v for k, v in _FLUX.items() if k != "txt_ids_dims"},
            "patch_size": [1, 2, 2],
            "depth": 20,
            "depth_single_blocks": 40,
            "theta": 256,
            "byt5": False,
            "meanflow": False,
            "use_cond_type_embedding": False,
            "vision_in_dim": None,
            "meanflow_sum": False,
        },
    ),
    "ltxv": ("lightricks.model:LTXVModel", {"num_layers": 28}),
    "hidream": (
        "hidream.model:HiDreamImageTransformer2DModel",
        {
            "patch_size": 2,
            "in_channels": 16,
            "out_channels": 16,
            "caption_channels": [4096, 4096],
            "axes_dims_rope": [64, 32, 32],
            "llama_layers": list(range(48)),
        },
    ),
    "cosmos1": (
        "cosmos.model:GeneralDIT",
        {
            **_COSMOS,
            "model_channels": 4096,
            "num_blocks": 28,
            "num_heads": 32,
            "block_x_format": "THWBD",
            "affline_emb_norm": True,
            "extra_per_block_abs_pos_emb": True,
            "extra_per_block_abs_pos_emb_type": "learnable",
        },
    ),
    "cosmos2": ("cosmos.predict2:MiniTrainDIT", _PREDICT2),
    "anima": ("anima.model:Anima", _PREDICT2),
    "auraflow": ("aura.mmdit:MMDiT", {"n_double_layers": 4, "n_layers": 36}),
    "pixart": ("pixart.pixartms:PixArtMS", {"model_max_length": 300, "micro_condition": False}),
    "krea2": ("krea2.model:SingleStreamDiT", {}),
    "kandinsky5": ("kandinsky5.model:Kandinsky5", {"num_visual_blocks": 32}),
}
"""Name to where the class is, below ``comfy.ldm``, and what it is made with."""


def make(name):
    """One of the models, without weights."""
    import comfy.ops
    import torch

    place, config = MODELS[name]
    module, _, kind = place.partition(":")
    made = getattr(importlib.import_module(f"comfy.ldm.{module}"), kind)
    return made(
        **config, dtype=torch.float32, device="meta", operations=comfy.ops.disable_weight_init
    )
