"""The record of Wan, and where its functions are."""

from __future__ import annotations

from ...diffusion.sigma import ShiftSettings
from ...types import FrameGrid
from ...weights.file_spec import FolderSpec
from ..family import Family
from ..family_specs import (
    BaseFiles,
    HeaderNames,
    LatentSpec,
    LayerSpec,
    PredictionSpec,
    RoutedBlocks,
    TextSpec,
)
from ..qwen_vae import latents
from .bases import check_base, levels_note, levels_of, of_base, reads, second_of
from .encode import load_encoders, load_token_counter, load_vae
from .keys import FILE, KEY_MAP, OF_5B, detect, published_sizes
from .predict import TEXT_ROWS, conditioning_shapes, predict

_ATTENTION = r"blocks\.\d+\.attn[12]\.(to_[qkv]|to_out\.0|add_[kv]_proj)"
_MLP = r"blocks\.\d+\.ffn\.net\.(0\.proj|2)"
_OUTER = (
    r"condition_embedder\.((text|time)_embedder\.linear_[12]|time_proj"
    r"|image_embedder\.ff\.net\.(0\.proj|2))|proj_out"
)

PRESETS = {
    "default": (_ATTENTION, _MLP),
    "attention": (_ATTENTION,),
    "attention_mlp": (_ATTENTION, _MLP),
    "all_linear": (_ATTENTION, _MLP, _OUTER),
    # As musubi-tuner 30c658c leaves out embeddings, norms and head (networks/lora_wan.py).
    "musubi": (_ATTENTION, _MLP),
}

SHARED_INPUTS = (r"(blocks\.\d+)\.attn1\.to_[qkv]", r"(blocks\.\d+)\.attn2\.to_[kv]")

FAMILY = Family(
    name="wan",
    title="Wan 2.1 or 2.2",
    models="2.1 T2V and I2V, 2.2 TI2V-5B, one expert of A14B; command line only",
    variants=("generate",),
    text=TextSpec(
        length=TEXT_ROWS,
        load_token_counter=load_token_counter,
        conditioning_shapes=conditioning_shapes,
    ),
    latents=LatentSpec(
        # Of TI2V-5B, whose latents are 16 pixels wide; others take every 16.
        size_multiple=32,
        load_vae=load_vae,
        of_config=latents,
        clips=FrameGrid(every=4, rate=16.0),
        of_base=of_base,
    ),
    layers=LayerSpec(
        key_map=KEY_MAP,
        repeated_blocks=("blocks",),
        routed=RoutedBlocks(("blocks",), axes={"rotary_emb": (1, 1)}),
        presets=PRESETS,
        shared_inputs=SHARED_INPUTS,
        sizes=published_sizes,
        published={
            "14B": {},
            "1.3B": {"num_attention_heads": 12, "ffn_dim": 8960, "num_layers": 30},
            "2.1 I2V": {"in_channels": 36, "image_dim": 1280, "added_kv_proj_dim": 5120},
            "TI2V-5B": {
                "num_attention_heads": 24,
                "ffn_dim": 14336,
                "num_layers": 30,
                "in_channels": OF_5B,
                "out_channels": OF_5B,
            },
        },
    ),
    files=BaseFiles(
        folder=FolderSpec(
            pipelines={"WanPipeline": None, "WanImageToVideoPipeline": None},
            seeing_parts=("image_encoder", "image_processor"),
            sees=lambda file, denoiser: bool(reads(file, denoiser).vision),
            check=check_base,
        ),
        single_file=FILE,
        detect=detect,
        header_hint=r"wan2|wanvideo|wan(?=t2v)|^wan$",
        # As musubi-tuner writes them.
        header_names={"generate": HeaderNames("wan2.1", "wan")},
    ),
    prediction=PredictionSpec(
        predict=predict,
        levels_of=levels_of,
        levels_note=levels_note,
        second_of=second_of,
        # Folders say 3 for 480p and 5 for 720p, for generating. As musubi-tuner 30c658c advises
        # for 480p, and as the MODEL of a graph is trained.
        trained_shift=lambda location: ShiftSettings(shift=3.0),
    ),
    load_encoders=load_encoders,
)
