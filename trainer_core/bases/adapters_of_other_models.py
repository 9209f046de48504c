"""How the adapter files of other models look: a table of names, block counts and widths.

An adapter file does not say what it is for. Its layers do: how they are called, how many blocks
there are, and how wide they are. This table is of models that no family here trains, so that their
files are named instead of being taken for one of ours. FLUX.1 and Qwen-Image are not in it: what
they look like is known exactly (`LayerSpec.published`).

Names are flat: without prefix, and with ``_`` for each dot, because that is all that kohya's files
keep. Both Diffusers' and ComfyUI's names of a model are here.

Source: the models' classes in Diffusers 0.42 and ComfyUI 0.33; tests compare the table with both.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property

_OWN = "(to_[qkv]|to_out_0)"
_BOTH = "(to_[qkv]|to_out_0|add_[qkv]_proj|to_add_out)"
_ATTENTION = f"attn_{_BOTH}"
_CROSS = f"attn[12]_{_OWN}"
_FEED = "ff_net_(0_proj|2)"
_FEEDS = "ff(_context)?_net_(0_proj|2)"
_NORMS = "norm1(_context)?_linear"
_DOUBLE = f"{_ATTENTION}|{_FEEDS}|{_NORMS}"
_SINGLE = "attn_to_[qkv]|proj_mlp|proj_out"
_LINEAR_FEED = f"attn_{_OWN}|ff_linear_(in|out)"
_TRANSFORMER = "(time|caption|adaln|patch|proj|norm|pos|text|guidance|context|x_embedder).*"

_STREAMS = "(img|txt)_(attn_(qkv|proj)|mlp_[02])"
_TENCENTS = "(img|txt)_(attn_(qkv|[qkv]|proj)|mlp_(0|2|fc1|fc2)|mod_(lin|linear))"
"""Both streams of a double block, as ComfyUI, Tencent's own code and musubi-tuner spell them."""

_TAKES_WIDTH = re.compile(
    r"(attn1_|attn_|attention_|block_|self_)?"
    r"(to_q|qkv|wq|q|q_proj|to_qkv_mlp_proj|to_query)"
    r"|((img|txt)_)?(attn_)?qkv|linear1|(img_|txt_)?mlp_(0|fc1)|img_attn_qkv|txt_attn_qkv"
    r"|(x|context)_block_attn_qkv"
    r"|(img|txt)_attn_q|proj_mlp|norm_linear|ff_net_0_proj|ffn_0|ffn_net_0_proj|feed_forward_(w1|w3|linear_1)"
    r"|self_attn_(q|q_proj)|cross_attn_(q|q_proj)|attn2_to_[qkv]|modulation_lin(ear)?"
)
"""Layers of a block whose inputs are as many as the model is wide, whatever the model."""


@dataclass(frozen=True, eq=False)
class Architecture:
    """A model that others train.

    Attributes:
        title: The name for people.
        blocks: How a list of blocks is called, to how many there are in the largest published
            model, and the layers of one.
        widths: How wide the published models are.
        others: Layers that are in no numbered block.
        inputs: Layers to how many inputs they have, where that tells models apart.
        hint: What the header of a file says that was made for it, in small letters and digits.
    """

    title: str
    blocks: Mapping[str, tuple[int, str]]
    widths: tuple[int, ...] = ()
    others: str = "(?!)"
    inputs: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    hint: str = "(?!)"

    def has(self, name: str, inputs: int | None) -> bool:
        """Whether it has a layer, of so many inputs in the file; None where that is not known."""
        if self.fits_size(name, inputs) is False:
            return False
        for stack, count, layers in self._blocks:
            block = stack.match(name)
            if block is None or int(block["number"]) >= count:
                continue
            if layers.fullmatch(name, block.end()):
                return True
        return self._others.fullmatch(name) is not None

    def fits_size(self, name: str, inputs: int | None) -> bool | None:
        """Whether a layer has as many inputs as here; None where that tells nothing.

        Those of the file may not be known either.
        """
        if inputs is None:
            return None
        for layer, sizes in self._inputs:
            if layer.fullmatch(name):
                return inputs in sizes
        for stack, _, _ in self._blocks:
            block = stack.match(name)
            if block is not None and self.widths and _TAKES_WIDTH.fullmatch(name, block.end()):
                return inputs in self.widths
        return None

    @cached_property
    def _blocks(self) -> tuple[tuple[re.Pattern[str], int, re.Pattern[str]], ...]:
        return tuple(
            (re.compile(rf"{stack}_(?P<number>\d{{1,4}})_"), count, re.compile(layers))
            for stack, (count, layers) in self.blocks.items()
        )

    @cached_property
    def _inputs(self) -> tuple[tuple[re.Pattern[str], tuple[int, ...]], ...]:
        return tuple((re.compile(layer), sizes) for layer, sizes in self.inputs.items())

    @cached_property
    def _others(self) -> re.Pattern[str]:
        return re.compile(self.others)


_UNET_LAYER = (
    r"(proj_in|proj_out"
    r"|transformer_blocks_{depth}_(attn[12]_(to_[qkv]|to_out_0)|ff_net_(0_proj|2)))"
)
_UNET_REST = (
    r"|(down|up)_blocks_\d_(resnets_\d_(conv1|conv2|time_emb_proj|conv_shortcut)"
    r"|(down|up)samplers_0_conv)|mid_block_resnets_\d_(conv1|conv2|time_emb_proj)"
    r"|(input|output)_blocks_\d+_\d_(in_layers_2|emb_layers_1|out_layers_3|skip_connection|op|conv)"
    r"|input_blocks_\d+_0_op|middle_block_[02]_(in_layers_2|emb_layers_1|out_layers_3)"
    r"|conv_in|conv_out|time_embed(ding)?_(linear_[12]|0|2)|(add_embedding|label_emb)_.*"
)


def _unet(title: str, places: str, depth: str, context: int, hint: str) -> Architecture:
    layer = _UNET_LAYER.replace("{depth}", depth)
    return Architecture(
        title,
        {},
        others=f"({places})_{layer}{_UNET_REST}",
        inputs={r".*_attn2_to_[kv]": (context,)},
        hint=hint,
    )


def _transformer(
    title: str, count: int, layers: str, widths: tuple[int, ...], hint: str
) -> Architecture:
    """A model with one list of blocks, in Diffusers' usual names around it."""
    blocks = {"transformer_blocks": (count, layers)}
    return Architecture(title, blocks, widths, _TRANSFORMER, hint=hint)


_SMALL_UNET = (
    r"down_blocks_[0-2]_attentions_[01]|mid_block_attentions_0|up_blocks_[1-3]_attentions_[0-2]"
    r"|input_blocks_(1|2|4|5|7|8)_1|middle_block_1|output_blocks_([3-9]|10|11)_1"
)
_LARGE_UNET = (
    r"down_blocks_[12]_attentions_[01]|mid_block_attentions_0|up_blocks_[01]_attentions_[0-2]"
    r"|input_blocks_[4578]_1|middle_block_1|output_blocks_[0-5]_1"
)

_TENCENTS_BLOCKS = {
    "transformer_blocks": (20, _DOUBLE),
    "single_transformer_blocks": (40, f"{_SINGLE}|norm_linear"),
    "double_blocks": (20, _TENCENTS),
    "single_blocks": (40, "linear[12]|modulation_(lin|linear)"),
}
_REFINED = "(layers|noise_refiner|context_refiner)"
_COGS = f"attn1_{_OWN}|{_FEED}"

ARCHITECTURES: tuple[Architecture, ...] = (
    _unet(
        "Stable Diffusion 1.x", _SMALL_UNET, "0", context=768, hint=r"sdv1|sd15|stablediffusionv1"
    ),
    _unet(
        "Stable Diffusion 2.x", _SMALL_UNET, "0", context=1024, hint=r"sdv2|sd2|stablediffusionv2"
    ),
    _unet("SDXL", _LARGE_UNET, r"\d", context=2048, hint=r"sdxl|xlv1|xlbase"),
    Architecture(
        "Stable Diffusion 3 or 3.5",
        {
            "transformer_blocks": (38, f"{_DOUBLE}|attn2_{_OWN}"),
            "joint_blocks": (
                38,
                "(x|context)_block_(attn2?_(qkv|proj)|mlp_fc[12]|adaLN_modulation_1)",
            ),
        },
        (1536, 2432),
        f"{_TRANSFORMER}|(x|t|y)_embedder_.*|final_layer_.*",
        hint=r"sd3|stablediffusion3|stablediffusionv3",
    ),
    Architecture(
        "Chroma1-Radiance",
        {
            "transformer_blocks": (19, f"{_ATTENTION}|{_FEEDS}"),
            "single_transformer_blocks": (38, _SINGLE),
            "double_blocks": (19, _STREAMS),
            "single_blocks": (38, "linear[12]"),
        },
        (3072,),
        "distilled_guidance_layer_.*|x_embedder|context_embedder|proj_out|img_in(_patch)?|txt_in"
        "|final_layer_linear|nerf_.*",
        hint="radiance",
    ),
    Architecture(
        "HunyuanVideo",
        _TENCENTS_BLOCKS,
        (3072,),
        "context_embedder_.*|time_text_embed_.*|x_embedder_proj|norm_out_linear|proj_out"
        "|(txt|img|time|vector|guidance)_in_.*|final_layer_.*",
        hint=r"hunyuan(?!image|dit|video15|15)|hv(?!15)",
    ),
    Architecture(
        "LongCat-Image, Bria or Ovis-Image",
        {
            "transformer_blocks": (19, _DOUBLE),
            "single_transformer_blocks": (38, f"{_SINGLE}|norm_linear"),
        },
        (3072,),
        "(time_embed|timestep_embedder|caption_projection)_.*|context_embedder|x_embedder"
        "|norm_out_linear|proj_out",
        hint=r"bria|longcat|ovis",
    ),
    Architecture(
        "HunyuanVideo 1.5",
        {"transformer_blocks": (54, _DOUBLE), "double_blocks": (54, _TENCENTS)},
        (2048,),
        f"{_TRANSFORMER}|image_embedder_.*|(txt|img|time|byt5|vision)_in_.*|final_layer_.*",
        hint=r"hunyuanvideo15|hv15",
    ),
    Architecture(
        "HunyuanImage 2.1",
        _TENCENTS_BLOCKS,
        (3584,),
        f"{_TRANSFORMER}|(txt|img|time|byt5|guidance)_in_.*|final_layer_.*|img_in",
        hint="hunyuanimage",
    ),
    Architecture(
        "Wan 2.1 or 2.2",
        {
            "(vace_)?blocks": (
                40,
                f"{_CROSS}|attn2_add_[kv]_proj|ffn_net_(0_proj|2)|ffn_[02]"
                "|(self|cross)_attn_([qkvo]|[kv]_img)|proj_in|proj_out|(before|after)_proj",
            )
        },
        (1536, 3072, 5120),
        "(vace_)?patch_embedding|condition_embedder_.*|(text|time)_embedding_[02]|time_projection_1|img_emb_proj_[13]"
        "|head_head|proj_out|face_(adapter|encoder)_.*|motion_encoder_.*",
        hint=r"wan2|wanvideo|wan(?=t2v|i2v)|^wan$",
    ),
    Architecture(
        "Lumina 2",
        {
            _REFINED: (
                26,
                f"(attn_{_OWN}|attention_(qkv|out))|feed_forward_(w[123]|linear_[123])"
                "|norm1_linear|adaLN_modulation_1",
            )
        },
        (2304,),
        "(cap_embedder|t_embedder|x_embedder|final_layer|time_caption_embed|norm_out).*",
        hint="lumina",
    ),
    Architecture(
        "OmniGen2",
        {
            "(layers|noise_refiner|context_refiner|ref_image_refiner)": (
                32,
                f"attn_{_OWN}|feed_forward_linear_[123]|norm1_linear",
            )
        },
        (2520,),
        "(time_caption_embed|x_embedder|ref_image_patch_embedder|norm_out).*",
        hint="omnigen2",
    ),
    Architecture(
        "HiDream",
        {
            "(double|single)_stream_blocks": (
                32,
                "(block_)?(attn1?_to_(q|k|v|out)(_t)?|ff_[it]_.*|adaLN_modulation_1)",
            )
        },
        others="(t_embedder|p_embedder|x_embedder|final_layer|caption_projection).*",
        hint="hidream",
    ),
    Architecture(
        "LTX-Video or LTX-2",
        {
            "transformer_blocks": (
                48,
                f"(audio_)?({_CROSS}|{_FEED})|(audio_to_video|video_to_audio)_attn_{_OWN}"
                "|.*to_gate_logits",
            )
        },
        (2048, 4096),
        others="(audio_)?(proj_in|proj_out|patchify_proj|time_embed|caption_projection|adaln_single).*"
        "|av_.*",
        inputs={r"transformer_blocks_\d+_attn2_to_[kv]": (2048, 4096)},
        hint="ltx",
    ),
    Architecture(
        "Cosmos",
        {"transformer_blocks": (28, f"{_CROSS}|{_FEED}|norm[123]_linear_[12]")},
        (4096,),
        others=_TRANSFORMER,
        inputs={r"transformer_blocks_\d+_attn2_to_[kv]": (1024,)},
        hint="cosmos",
    ),
    Architecture(
        "Anima or Cosmos-Predict2",
        {
            "blocks": (
                36,
                "(self|cross)_attn_(q_proj|k_proj|v_proj|output_proj)|mlp_layer[12]"
                "|adaln_modulation_.*",
            )
        },
        others="llm_adapter_.*|t_embedder_.*|x_embedder_.*|final_layer_.*",
        hint=r"anima(?!te)|cosmospredict",
    ),
    _transformer("PixArt", 28, f"{_CROSS}|{_FEED}", widths=(1152,), hint="pixart"),
    _transformer("Sana", 60, _CROSS, widths=(1152, 2240), hint="sana"),
    _transformer("CogVideoX", 42, f"{_COGS}|norm[12]_linear", widths=(1920, 3072), hint="cogvideo"),
    _transformer("CogView", 30, f"{_COGS}|norm1_linear", widths=(2560, 4096), hint="cogview"),
    Architecture(
        "Mochi",
        {
            "transformer_blocks": (48, f"attn1_{_BOTH}|{_FEEDS}|norm1(_context)?_linear(_1)?"),
            "blocks": (48, "attn_(qkv_[xy]|proj_[xy])|mlp_[xy]_w[12]|mod_[xy]"),
        },
        (3072,),
        _TRANSFORMER,
        hint="mochi",
    ),
    Architecture(
        "AuraFlow",
        {
            "joint_transformer_blocks": (
                4,
                f"{_ATTENTION}|ff(_context)?_(linear_[12]|out_projection)|{_NORMS}",
            ),
            "single_transformer_blocks": (
                32,
                f"attn_{_OWN}|ff_(linear_[12]|out_projection)|norm1_linear",
            ),
            "double_layers": (4, ".*"),
            "single_layers": (32, ".*"),
        },
        (3072,),
        _TRANSFORMER,
        hint="auraflow",
    ),
    Architecture(
        "Kandinsky 5",
        {
            "(visual|text)_transformer_blocks": (
                60,
                "(self|cross)_attention_(to_(query|key|value)|out_layer)"
                "|feed_forward_(in|out)_layer|(visual|text)_modulation_out_layer",
            )
        },
        others="(time|text|pooled_text|visual)_embeddings_.*|out_layer_.*",
        hint="kandinsky5",
    ),
    Architecture(
        "FLUX.3",
        {
            "(txt_mode_blocks|mode_blocks_image(_cond)?)": (5, _LINEAR_FEED),
            "single_transformer_blocks": (28, _LINEAR_FEED),
        },
        (3072,),
        "(early|single)_stream_modulations_.*|x_embedders_.*|context_embedder|norm_out_linear"
        "|timestep_embedder_.*|proj_out",
        hint="flux3",
    ),
)
"""Models whose adapter files are recognised, and that no family here trains."""
