"""The arguments of musubi-tuner's trainings, beside those that it shares with sd-scripts.

Source: kohya-ss/musubi-tuner at 30c658c4, ``training/parser_common.py`` and the scripts
``*_train_network.py``.
"""

from __future__ import annotations

from .kohya import patterns
from .kohya_keys import ANY, ENCODERS, METADATA, NETWORK_ARGS, READER, SHARED
from .rules import Lacks, Maps, Table, Together, flag, number, text, whole

_TURBO = "Previews are made with the base that is trained."
_NAMES = "Names there may be the model's own."

ARGUMENTS: Table = {
    **SHARED,
    "model_version": Together("family, base.variant"),
    "edit": Together("base.variant"),
    "edit_plus": Together("base.variant"),
    "num_layers": Maps("preview.layers", whole),
    "remove_first_image_from_target": Lacks("The whole image is always a target."),
    "dit": Maps("base.path", text),
    **dict.fromkeys(
        ("vae_dtype", "text_encoder", "text_encoder1", "text_encoder2"), Lacks(ENCODERS)
    ),
    **dict.fromkeys(
        ("fp8_vl", "fp8_t5", "fp8_llm", "fp8_text_encoder", "vae_tiling"),
        Lacks("Encoders work before the training, and leave.", ANY),
    ),
    "turbo_dit": Lacks(_TURBO),
    "turbo_dit_cache": Lacks(_TURBO),
    "use_pinned_memory_for_block_swap": Together("memory.master"),
    "block_swap_ring_size": Maps("memory.swap_slots", whole),
    "block_swap_h2d_only": Lacks("Frozen weights are never copied back.", ANY),
    "img_in_txt_in_offloading": Lacks("memory.plan places weights by itself."),
    "disable_numpy_memmap": Lacks(READER, ANY),
    "gradient_checkpointing_cpu_offload": Together("memory.checkpoint_inputs"),
    "compile": Maps("memory.compile", flag),
    **dict.fromkeys(
        (
            *("compile_backend", "compile_mode", "compile_dynamic", "compile_fullgraph"),
            *("compile_cache_size_limit", "dynamo_mode", "dynamo_fullgraph", "dynamo_dynamic"),
        ),
        Lacks("Blocks are compiled in one way.", (None, False, "inductor", "default")),
    ),
    **dict.fromkeys(("flash_attn", "sage_attn", "flash3", "use_32bit_attention"), SHARED["sdpa"]),
    "cuda_allow_tf32": Lacks("Computing in bf16 does not need it.", ANY),
    "cuda_cudnn_benchmark": Lacks("Transformers do not need it.", ANY),
    "learning_rate": Maps("training.optimizer.learning_rate", number, 2e-6),
    "guidance_scale": Maps("training.guidance", number),
    "preserve_distribution_shape": Together("training.sigma.min, training.sigma.max"),
    "num_timestep_buckets": Together("training.sigma.stratified"),
    "show_timesteps": Lacks("doctor and the report show what is trained."),
    "network_dim": Maps("adapter.rank", whole, 4),
    "metadata_reso": Lacks(METADATA),
    "metadata_arch": Lacks(METADATA),
}

_CONVOLUTIONS = Lacks("The layers that are adapted have no convolutions.", (None,))

NETWORK: Table = {
    **NETWORK_ARGS,
    "exclude_patterns": Maps("adapter.exclude", patterns, near=_NAMES),
    "include_patterns": Maps("adapter.include", patterns, near=_NAMES),
    "conv_dim": _CONVOLUTIONS,
    "conv_alpha": _CONVOLUTIONS,
}
