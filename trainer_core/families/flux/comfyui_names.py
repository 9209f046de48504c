"""What ComfyUI calls FLUX.1's layers besides what `keys` says: norms, other spellings, one slice.

Some are of FLUX.2's spelling, which ComfyUI takes for FLUX.1 too.

Source: ComfyUI 0.33, ``comfy/utils.py`` (`flux_to_diffusers`) and ``comfy/lora.py``.
"""

from __future__ import annotations

from ...adapter_files.names.key_map import ComfyuiName

_DOUBLE = {
    "attn.norm_q": "img_attn.norm.query_norm",
    "attn.norm_k": "img_attn.norm.key_norm",
    "attn.norm_added_q": "txt_attn.norm.query_norm",
    "attn.norm_added_k": "txt_attn.norm.key_norm",
    "ff.linear_in": "img_mlp.0",
    "ff.linear_out": "img_mlp.2",
    "ff_context.linear_in": "txt_mlp.0",
    "ff_context.linear_out": "txt_mlp.2",
}
_SINGLE = {
    "attn.norm_q": "norm.query_norm",
    "attn.norm_k": "norm.key_norm",
    "attn.to_qkv_mlp_proj": "linear1",
    "attn.to_out": "linear2",
}
_QUERY_KEY_VALUE = 3

HOST_NAMES = (
    *(
        ComfyuiName(f"transformer_blocks.{{}}.{a}", f"double_blocks.{{}}.{b}")
        for a, b in _DOUBLE.items()
    ),
    *(
        ComfyuiName(f"single_transformer_blocks.{{}}.{a}", f"single_blocks.{{}}.{b}")
        for a, b in _SINGLE.items()
    ),
    ComfyuiName("norm_out.linear", "final_layer.adaLN_modulation.1", swapped=True),
    ComfyuiName("controlnet_x_embedder", "pos_embed_input"),
    ComfyuiName(
        "single_blocks.{}.linear1_qkv",
        "single_blocks.{}.linear1",
        shares=_QUERY_KEY_VALUE,
        spellings=("diffusion_model.{path}",),
    ),
)
