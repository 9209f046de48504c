"""The arguments of musubi-tuner's trainings.

Source: kohya-ss/musubi-tuner at 30c658c4, ``training/parser_common.py`` and the scripts
``*_train_network.py``.
"""

from __future__ import annotations

from .rules import EVERY, Lacks, Maps, Table, Together, flag, number, text, whole
from .vocabulary import FILE_DTYPE, PRECISION, PRECISION_EXACT, PRECISION_NEAR

_ATTENTION = "Attention is torch's own, which takes the fastest that there is."
_COMPILE = "Blocks are compiled in one way."
_UPLOAD = "Nothing is uploaded here."
_METADATA = "output.metadata says what a file tells of its making."
_READER = "Reading needs no such setting here."
_DISTRIBUTED = "accelerate launch sets it."
_ENCODERS = (
    "base.encoders names a Diffusers folder with text encoder and VAE; nodes take the graph's."
)
OPTIONS = (
    "optimizer_args",
    "network_args",
    "lr_scheduler_args",
    "base_weights",
    "base_weights_multiplier",
)
_NUMBERS = (None, *range(65))

SCRIPT = "the script"
"""Stands for the script's name among the arguments; none of them has a name of two words."""

ARGUMENTS: Table = {
    SCRIPT: Together("family, base.variant"),
    "model_version": Together("family, base.variant"),
    "edit": Together("base.variant"),
    "edit_plus": Together("base.variant"),
    "num_layers": Maps("preview.layers", whole),
    "remove_first_image_from_target": Lacks("The whole image is always a target."),
    "config_file": Together("all"),
    "dataset_config": Together("dataset"),
    "dit": Maps("base.path", text),
    "vae": Lacks(_ENCODERS),
    "vae_dtype": Lacks(_ENCODERS),
    "text_encoder": Lacks(_ENCODERS),
    "text_encoder1": Lacks(_ENCODERS),
    "text_encoder2": Lacks(_ENCODERS),
    **dict.fromkeys(
        ("fp8_vl", "fp8_t5", "fp8_llm", "fp8_text_encoder", "vae_tiling"),
        Lacks("Encoders work before the training, and leave.", (None, True, False)),
    ),
    "turbo_dit": Lacks("Previews are made with the base that is trained."),
    "turbo_dit_cache": Lacks("Previews are made with the base that is trained."),
    "base_weights": Together("base.adapters"),
    "base_weights_multiplier": Together("base.adapters"),
    "fp8_base": Together("memory.base_format"),
    "fp8_scaled": Together("memory.base_format"),
    "blocks_to_swap": Together("memory.blocks_to_swap"),
    "use_pinned_memory_for_block_swap": Together("memory.master"),
    "block_swap_ring_size": Maps("memory.swap_slots", whole),
    "block_swap_h2d_only": Lacks("Frozen weights are never copied back.", (None, True, False)),
    "img_in_txt_in_offloading": Lacks("memory.plan places weights by itself."),
    "disable_numpy_memmap": Lacks(_READER, (None, True, False)),
    "gradient_checkpointing": Together("memory.gradient_checkpointing"),
    "gradient_checkpointing_cpu_offload": Together("memory.checkpoint_inputs"),
    "compile": Maps("memory.compile", flag),
    **dict.fromkeys(
        (
            *("compile_backend", "compile_mode", "compile_dynamic", "compile_fullgraph"),
            *("compile_cache_size_limit", "dynamo_mode", "dynamo_fullgraph", "dynamo_dynamic"),
        ),
        Lacks(_COMPILE, (None, False, "inductor", "default")),
    ),
    "dynamo_backend": Lacks("memory.compile does it.", (None, "NO", "no")),
    **dict.fromkeys(
        (
            *("sdpa", "flash_attn", "sage_attn", "xformers", "flash3", "split_attn"),
            "use_32bit_attention",
        ),
        Lacks(_ATTENTION, (None, True, False)),
    ),
    "cuda_allow_tf32": Lacks("Computing in bf16 does not need it.", (None, True, False)),
    "cuda_cudnn_benchmark": Lacks("Transformers do not need it.", (None, True, False)),
    "max_train_steps": Together("training.steps"),
    "max_train_epochs": Together("training.steps"),
    "max_data_loader_n_workers": Lacks(_READER, _NUMBERS),
    "persistent_data_loader_workers": Lacks(_READER, (None, True, False)),
    "seed": Maps("seed", whole),
    "gradient_accumulation_steps": Maps("training.gradient_accumulation_steps", whole),
    "mixed_precision": Maps(
        "training.precision", PRECISION, "fp32", PRECISION_NEAR, PRECISION_EXACT
    ),
    "save_precision": Maps("output.dtype", FILE_DTYPE),
    "logging_dir": Lacks("Logs lie in the run's folder.", EVERY),
    "log_with": Together("metrics.trackers"),
    **dict.fromkeys(
        ("log_prefix", "log_tracker_name", "wandb_run_name", "log_tracker_config"),
        Lacks("The run's name is output.name.", EVERY),
    ),
    "wandb_api_key": Lacks("Log in with wandb itself; a key has no place in a run file."),
    "log_config": Lacks("A run always keeps its settings.", (None, True, False)),
    **dict.fromkeys(
        ("ddp_timeout", "ddp_gradient_as_bucket_view", "ddp_static_graph"), Lacks(_DISTRIBUTED)
    ),
    "sample_every_n_steps": Together("preview.every"),
    "sample_at_first": Lacks("The first preview is before step 1.", (None, True, False)),
    "sample_every_n_epochs": Together("preview.every"),
    "sample_prompts": Together("preview"),
    "optimizer_type": Together("training.optimizer.name"),
    "optimizer_args": Together("training.optimizer"),
    "learning_rate": Maps("training.optimizer.learning_rate", number, 2e-6),
    "max_grad_norm": Maps("training.max_grad_norm", number),
    "lr_scheduler": Together("training.schedule.name"),
    "lr_warmup_steps": Together("training.schedule.warmup_steps"),
    "lr_decay_steps": Together("training.schedule.decay_share"),
    "lr_scheduler_num_cycles": Together("training.schedule.cycles"),
    "lr_scheduler_power": Together("training.schedule.power"),
    "lr_scheduler_min_lr_ratio": Together("training.schedule.min_ratio"),
    "lr_scheduler_timescale": Lacks("There is no such schedule here."),
    "lr_scheduler_type": Lacks("Schedules of other libraries are not loaded."),
    "lr_scheduler_args": Lacks("The schedules here have no such numbers."),
    "guidance_scale": Maps("training.guidance", number),
    "timestep_sampling": Together("training.sigma.density"),
    "discrete_flow_shift": Together("training.sigma.shift"),
    "sigmoid_scale": Together("training.sigma.std"),
    "weighting_scheme": Together("training.sigma.density, training.loss.weighting"),
    "logit_mean": Together("training.sigma.mean"),
    "logit_std": Together("training.sigma.std"),
    "mode_scale": Together("training.sigma.mode_scale"),
    "min_timestep": Together("training.sigma.min"),
    "max_timestep": Together("training.sigma.max"),
    "preserve_distribution_shape": Together("training.sigma.min, training.sigma.max"),
    "num_timestep_buckets": Together("training.sigma.stratified"),
    "show_timesteps": Lacks("doctor and the report show what is trained."),
    "no_metadata": Together("output.metadata"),
    "network_weights": Maps("adapter.start_from", text),
    "network_module": Together("adapter.kind"),
    "network_dim": Maps("adapter.rank", whole, 4),
    "network_alpha": Maps("adapter.alpha", number, 1.0),
    "network_dropout": Maps(
        "adapter.dropout", number, near="There of the lower factor's outputs, here of inputs."
    ),
    "network_args": Together("adapter"),
    "dim_from_weights": Lacks("The rank is adapter.rank; another one is fitted to it."),
    "scale_weight_norms": Maps(
        "training.max_weight_norm", number, near="There the norm itself, here over the base's."
    ),
    "output_dir": Maps("output.dir", text),
    "output_name": Maps("output.name", text),
    "resume": Lacks("States of another program are not read; start_from takes an adapter."),
    "save_every_n_steps": Maps("training.checkpoint_every", whole, 0),
    "save_every_n_epochs": Together("training.checkpoint_every"),
    "save_last_n_steps": Together("training.keep_checkpoints"),
    **dict.fromkeys(
        ("save_last_n_epochs", "save_last_n_epochs_state", "save_last_n_steps_state"),
        Lacks("training.keep_checkpoints says how many are kept."),
    ),
    "save_state": Lacks("Every checkpoint can be resumed.", (None, True, False)),
    "save_state_on_train_end": Lacks("Every checkpoint can be resumed.", (None, True, False)),
    "training_comment": Lacks(_METADATA),
    **dict.fromkeys(
        [
            f"metadata_{name}"
            for name in ("title", "author", "description", "license", "tags", "reso", "arch")
        ],
        Lacks(_METADATA),
    ),
    **dict.fromkeys(
        [
            f"huggingface_{name}"
            for name in ("repo_id", "repo_type", "path_in_repo", "token", "repo_visibility")
        ],
        Lacks(_UPLOAD),
    ),
    "save_state_to_huggingface": Lacks(_UPLOAD),
    "resume_from_huggingface": Lacks(_UPLOAD),
    "async_upload": Lacks(_UPLOAD),
}
