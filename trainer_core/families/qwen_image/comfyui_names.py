"""What ComfyUI calls Qwen-Image's weights besides the layers that `keys` names: norms.

Source: ComfyUI 0.33, ``comfy/lora.py`` (`model_lora_keys_unet`).
"""

from __future__ import annotations

from ...adapter_files.names.key_map import ComfyuiName

_PATHS = (
    *(
        f"transformer_blocks.{{}}.attn.{norm}"
        for norm in ("norm_q", "norm_k", "norm_added_q", "norm_added_k")
    ),
    "txt_norm",
)
HOST_NAMES = tuple(ComfyuiName(path, path) for path in _PATHS)
