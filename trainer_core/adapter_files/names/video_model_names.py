"""The layers of video models: ComfyUI's names, and those that other trainers have for them.

ComfyUI knows most of these layers by its own names alone, so that files under Diffusers' names do
nothing there. What is one layer in ComfyUI's HunyuanVideo is three or four in Diffusers' model, and
in musubi-tuner's of HunyuanVideo 1.5.

In a name ``{}`` is the number of a block.

Source: the models' classes in ComfyUI 0.33 and Diffusers 0.42, ComfyUI's ``comfy/lora.py``
(`model_lora_keys_unet`), musubi-tuner at 30c658c4; a test compares them with ComfyUI's.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

from .key_map import ComfyuiName, Part

_NATIVE = "diffusion_model.{path}"


@dataclass(frozen=True, slots=True)
class VideoModel:
    """The names of a model, or of several that call their layers alike.

    Attributes:
        titles: What people call these models.
        marks: Layers that no other model has, or alternatives of them: one of each.
        layers: ComfyUI's name of a layer to what Diffusers calls it.
        parts: ComfyUI's name of a fused layer to its parts by names of their own, with what
            Diffusers calls them.
        beside: What has weights and is not adapted: norms, and parameters of blocks.
        spellings: As `KeyMap.comfyui_spellings`.
        tencents: Whether ComfyUI also knows the names that Tencent's own code has for the layers.
    """

    titles: tuple[str, ...]
    marks: tuple[tuple[str, ...], ...]
    layers: Mapping[str, str]
    parts: Mapping[str, Mapping[Part, str]] = field(default_factory=dict)
    beside: tuple[str, ...] = ()
    spellings: tuple[str, ...] = (_NATIVE,)
    tencents: bool = False

    def aliases(self) -> dict[str, str]:
        """Other trainers' names to ComfyUI's, as `KeyMap.aliases`, or to those of parts."""
        own = {theirs: native for native, theirs in self.layers.items() if theirs != native}
        for parts in self.parts.values():
            own |= {theirs: part.module for part, theirs in parts.items()}
        return own

    def comfyui_names(self) -> tuple[ComfyuiName, ...]:
        """What ComfyUI names besides layers by their own names."""
        names = [ComfyuiName(each, each, spellings=self.spellings) for each in self.beside]
        if self.tencents:
            spelt = ("transformer.{path}", _NATIVE)
            every = (*self.layers, *self.beside)
            names += [ComfyuiName(_tencents(each), each, spellings=spelt) for each in every]
        return tuple(names)


def video_model(modules: Collection[str]) -> VideoModel | None:
    """Find the model of videos that has modules of these paths; None where it is none."""
    for each in VIDEO_MODELS.values():
        if all(any(mark in modules for mark in marks) for marks in each.marks):
            return each
    return None


def _tencents(native: str) -> str:
    for own, theirs in (
        ("_mod.lin", "_mod.linear"),
        ("_attn.qkv", "_attn_qkv"),
        ("_attn.proj", "_attn_proj"),
        ("mlp.0", "mlp.fc1"),
        ("mlp.2", "mlp.fc2"),
        (".modulation.lin", ".modulation.linear"),
    ):
        native = native.replace(own, theirs)
    return native


def _inside(native: str, theirs: str, names: Mapping[str, str]) -> dict[str, str]:
    """Layers of a module, by its two paths."""
    return {f"{native}.{own}": f"{theirs}.{other}" for own, other in names.items()}


_OUTPUT = "to_out.0"
_QKV = {"q": "to_q", "k": "to_k", "v": "to_v"}
_MLP = {"0": "net.0.proj", "2": "net.2"}
_LINEARS = {"0": "linear_1", "2": "linear_2"}


def _wans_blocks(blocks: str) -> dict[str, str]:
    own = {**_QKV, "o": _OUTPUT}
    return {
        **_inside(f"{blocks}.{{}}.self_attn", f"{blocks}.{{}}.attn1", own),
        **_inside(
            f"{blocks}.{{}}.cross_attn",
            f"{blocks}.{{}}.attn2",
            {**own, "k_img": "add_k_proj", "v_img": "add_v_proj"},
        ),
        **_inside(f"{blocks}.{{}}.ffn", f"{blocks}.{{}}.ffn", _MLP),
    }


def _wans_beside(blocks: str) -> tuple[str, ...]:
    norms = ("self_attn.norm_q", "self_attn.norm_k", "cross_attn.norm_q", "cross_attn.norm_k")
    more = ("cross_attn.norm_k_img", "norm3", "modulation")
    return tuple(f"{blocks}.{{}}.{name}" for name in (*norms, *more))


_CONDITION = "condition_embedder"
_WAN = VideoModel(
    ("Wan 2.1 or 2.2",),
    (("blocks.0.self_attn.q",), ("blocks.0.cross_attn.k",), ("blocks.0.ffn.0",)),
    {
        **_wans_blocks("blocks"),
        **_wans_blocks("vace_blocks"),
        "vace_blocks.{}.before_proj": "vace_blocks.{}.proj_in",
        "vace_blocks.{}.after_proj": "vace_blocks.{}.proj_out",
        **_inside("text_embedding", f"{_CONDITION}.text_embedder", _LINEARS),
        **_inside("time_embedding", f"{_CONDITION}.time_embedder", _LINEARS),
        "time_projection.1": f"{_CONDITION}.time_proj",
        "img_emb.proj.1": f"{_CONDITION}.image_embedder.ff.net.0.proj",
        "img_emb.proj.3": f"{_CONDITION}.image_embedder.ff.net.2",
        "patch_embedding": "patch_embedding",
        "vace_patch_embedding": "vace_patch_embedding",
        "head.head": "proj_out",
    },
    beside=(
        *_wans_beside("blocks"),
        *_wans_beside("vace_blocks"),
        *("img_emb.proj.0", "img_emb.proj.4", "head.modulation"),
    ),
)

_DOUBLE, _SINGLE = "double_blocks.{}", "single_blocks.{}"
_REFINER = "txt_in.individual_token_refiner.blocks.{}"
_THEIR_DOUBLE, _THEIR_SINGLE = "transformer_blocks.{}", "single_transformer_blocks.{}"
_THEIR_REFINER = "context_embedder.token_refiner.refiner_blocks.{}"
_EMBEDDER = {"in_layer": "linear_1", "out_layer": "linear_2"}
_ADDED = {"q": "add_q_proj", "k": "add_k_proj", "v": "add_v_proj"}


def _parts(before: str, theirs: str, names: Mapping[str, str]) -> dict[Part, str]:
    return {Part(f"{before}_{own}"): f"{theirs}.attn.{other}" for own, other in names.items()}


_HUNYUAN = VideoModel(
    ("HunyuanVideo", "HunyuanVideo 1.5"),
    (
        (_REFINER.format(0) + ".self_attn.qkv",),
        (_DOUBLE.format(0) + ".img_attn.qkv",),
        ("vector_in.in_layer", "vision_in.proj.1"),
    ),
    {
        **_inside(
            _DOUBLE,
            _THEIR_DOUBLE,
            {
                "img_attn.proj": f"attn.{_OUTPUT}",
                "txt_attn.proj": "attn.to_add_out",
                "img_mlp.0": "ff.net.0.proj",
                "img_mlp.2": "ff.net.2",
                "txt_mlp.0": "ff_context.net.0.proj",
                "txt_mlp.2": "ff_context.net.2",
                "img_mod.lin": "norm1.linear",
                "txt_mod.lin": "norm1_context.linear",
            },
        ),
        **_inside(_SINGLE, _THEIR_SINGLE, {"linear2": "proj_out", "modulation.lin": "norm.linear"}),
        **_inside(
            _REFINER,
            _THEIR_REFINER,
            {
                "self_attn.proj": f"attn.{_OUTPUT}",
                "mlp.0": "ff.net.0.proj",
                "mlp.2": "ff.net.2",
                "adaLN_modulation.1": "norm_out.linear",
            },
        ),
        # The name that Diffusers has for their parts together is none.
        **{
            each: each
            for each in (
                f"{_DOUBLE}.img_attn.qkv",
                f"{_DOUBLE}.txt_attn.qkv",
                f"{_SINGLE}.linear1",
                f"{_REFINER}.self_attn.qkv",
            )
        },
        "txt_in.input_embedder": "context_embedder.proj_in",
        **_inside(
            "txt_in.t_embedder", "context_embedder.time_text_embed.timestep_embedder", _EMBEDDER
        ),
        **_inside("txt_in.c_embedder", "context_embedder.time_text_embed.text_embedder", _EMBEDDER),
        **_inside("time_in", "time_text_embed.timestep_embedder", _EMBEDDER),
        **_inside("vector_in", "time_text_embed.text_embedder", _EMBEDDER),
        **_inside("guidance_in", "time_text_embed.guidance_embedder", _EMBEDDER),
        "img_in.proj": "x_embedder.proj",
        "vision_in.proj.1": "image_embedder.linear_1",
        "vision_in.proj.3": "image_embedder.linear_2",
        "byt5_in.fc1": "context_embedder_2.linear_1",
        "byt5_in.fc2": "context_embedder_2.linear_2",
        "byt5_in.fc3": "context_embedder_2.linear_3",
        "final_layer.linear": "proj_out",
        "final_layer.adaLN_modulation.1": "final_layer.adaLN_modulation.1",
    },
    parts={
        f"{_DOUBLE}.img_attn.qkv": _parts(f"{_DOUBLE}.img_attn", _THEIR_DOUBLE, _QKV),
        f"{_DOUBLE}.txt_attn.qkv": _parts(f"{_DOUBLE}.txt_attn", _THEIR_DOUBLE, _ADDED),
        f"{_SINGLE}.linear1": {
            **_parts(f"{_SINGLE}.linear1", _THEIR_SINGLE, _QKV),
            Part(f"{_SINGLE}.linear1_mlp", 4): f"{_THEIR_SINGLE}.proj_mlp",
        },
        f"{_REFINER}.self_attn.qkv": _parts(f"{_REFINER}.self_attn", _THEIR_REFINER, _QKV),
    },
    beside=(
        *(
            f"{block}.{name}_norm"
            for block in (f"{_DOUBLE}.img_attn.norm", f"{_DOUBLE}.txt_attn.norm", f"{_SINGLE}.norm")
            for name in ("query", "key")
        ),
        *(f"{_REFINER}.norm1", f"{_REFINER}.norm2", "vision_in.proj.0", "vision_in.proj.4"),
        *("byt5_in.layernorm", "cond_type_embedding"),
    ),
    tencents=True,
)

_ATTENTION = ("to_q", "to_k", "to_v", _OUTPUT)
_LTX_ATTENTIONS = (
    *("attn1", "attn2", "audio_attn1", "audio_attn2"),
    *("audio_to_video_attn", "video_to_audio_attn"),
)
_LTX_ALIKE = (
    *(
        f"transformer_blocks.{{}}.{name}"
        for name in (
            *(f"{each}.{layer}" for each in _LTX_ATTENTIONS for layer in _ATTENTION),
            *(f"{each}.to_gate_logits" for each in _LTX_ATTENTIONS),
            *(f"{each}.{layer}" for each in ("ff", "audio_ff") for layer in _MLP.values()),
        )
    ),
    *(f"{before}caption_projection.linear_{n}" for before in ("", "audio_") for n in "12"),
    *("proj_out", "audio_proj_out"),
)
_LTX_TIMES = {
    "adaln_single": "time_embed",
    "audio_adaln_single": "audio_time_embed",
    "av_ca_video_scale_shift_adaln_single": "av_cross_attn_video_scale_shift",
    "av_ca_audio_scale_shift_adaln_single": "av_cross_attn_audio_scale_shift",
    "av_ca_a2v_gate_adaln_single": "av_cross_attn_video_a2v_gate",
    "av_ca_v2a_gate_adaln_single": "av_cross_attn_audio_v2a_gate",
}
_OF_TIME = (*(f"emb.timestep_embedder.linear_{n}" for n in "12"), "linear")
_LTX = VideoModel(
    ("LTX-Video or LTX-2",),
    (("transformer_blocks.0.attn1.to_q",), ("patchify_proj",), ("adaln_single.linear",)),
    {
        **{each: each for each in _LTX_ALIKE},
        "patchify_proj": "proj_in",
        "audio_patchify_proj": "audio_proj_in",
        **{
            f"{native}.{each}": f"{theirs}.{each}"
            for native, theirs in _LTX_TIMES.items()
            for each in _OF_TIME
        },
    },
    beside=tuple(
        f"transformer_blocks.{{}}.{each}.{name}_norm" for each in _LTX_ATTENTIONS for name in "qk"
    ),
    spellings=("{path}",),
)

_K5_ATTENTION = ("to_query", "to_key", "to_value", "out_layer")
_K5_BLOCKS = {"visual": ("self_attention", "cross_attention"), "text": ("self_attention",)}
_K5_LAYERS = (
    *(
        f"{kind}_transformer_blocks.{{}}.{name}"
        for kind, attentions in _K5_BLOCKS.items()
        for name in (
            *(f"{each}.{layer}" for each in attentions for layer in _K5_ATTENTION),
            *("feed_forward.in_layer", "feed_forward.out_layer", f"{kind}_modulation.out_layer"),
        )
    ),
    *("time_embeddings.in_layer", "time_embeddings.out_layer", "text_embeddings.in_layer"),
    *("pooled_text_embeddings.in_layer", "visual_embeddings.in_layer"),
    *("out_layer.modulation.out_layer", "out_layer.out_layer"),
)
_KANDINSKY = VideoModel(
    ("Kandinsky 5",),
    (("visual_transformer_blocks.0.self_attention.to_query",),),
    {each: each for each in _K5_LAYERS},
    beside=(
        *(
            f"{kind}_transformer_blocks.{{}}.{each}.{name}_norm"
            for kind, attentions in _K5_BLOCKS.items()
            for each in attentions
            for name in ("query", "key")
        ),
        *("text_embeddings.norm", "pooled_text_embeddings.norm"),
    ),
    spellings=("{path}", "transformer.{path}"),
)

_COSMOS_BLOCK, _THEIR_BLOCK = "blocks.{}", "transformer_blocks.{}"
_COSMOS_ATTENTION = {"q_proj": "to_q", "k_proj": "to_k", "v_proj": "to_v", "output_proj": _OUTPUT}
_ADALN = {"1": "linear_1", "2": "linear_2"}
_COSMOS = VideoModel(
    ("Anima or Cosmos-Predict2",),
    (("blocks.0.self_attn.q_proj",), ("blocks.0.mlp.layer1",)),
    {
        **_inside(f"{_COSMOS_BLOCK}.self_attn", f"{_THEIR_BLOCK}.attn1", _COSMOS_ATTENTION),
        **_inside(f"{_COSMOS_BLOCK}.cross_attn", f"{_THEIR_BLOCK}.attn2", _COSMOS_ATTENTION),
        f"{_COSMOS_BLOCK}.mlp.layer1": f"{_THEIR_BLOCK}.ff.net.0.proj",
        f"{_COSMOS_BLOCK}.mlp.layer2": f"{_THEIR_BLOCK}.ff.net.2",
        **_inside(f"{_COSMOS_BLOCK}.adaln_modulation_self_attn", f"{_THEIR_BLOCK}.norm1", _ADALN),
        **_inside(f"{_COSMOS_BLOCK}.adaln_modulation_cross_attn", f"{_THEIR_BLOCK}.norm2", _ADALN),
        **_inside(f"{_COSMOS_BLOCK}.adaln_modulation_mlp", f"{_THEIR_BLOCK}.norm3", _ADALN),
        "t_embedder.1.linear_1": "time_embed.t_embedder.linear_1",
        "t_embedder.1.linear_2": "time_embed.t_embedder.linear_2",
        "x_embedder.proj.1": "patch_embed.proj",
        "final_layer.linear": "proj_out",
        "final_layer.adaln_modulation.1": "norm_out.linear_1",
        "final_layer.adaln_modulation.2": "norm_out.linear_2",
    },
    beside=(
        *(
            f"{_COSMOS_BLOCK}.{each}.{name}_norm"
            for each in ("self_attn", "cross_attn")
            for name in "qk"
        ),
        "t_embedding_norm",
    ),
)

VIDEO_MODELS: Mapping[str, VideoModel] = {
    "wan": _WAN,
    "hunyuan_video": _HUNYUAN,
    "ltx_video": _LTX,
    "kandinsky5": _KANDINSKY,
    "cosmos_predict2": _COSMOS,
}
"""By the words that commands name them with. None of them is a family of the trainer's own."""
