"""The arguments that kohya's two programs share.

Source: kohya-ss/musubi-tuner at 30c658c4, ``training/parser_common.py``, and kohya-ss/sd-scripts at
48d368fa, ``library/train_util.py`` and ``train_network.py``.
"""

from __future__ import annotations

from .rules import EVERY, Lacks, Maps, Table, Together, number, text, whole
from .vocabulary import FILE_DTYPE, PRECISION, PRECISION_EXACT, PRECISION_NEAR

ANY = (None, True, False)
OPTIONS = (
    "optimizer_args",
    "network_args",
    "lr_scheduler_args",
    "base_weights",
    "base_weights_multiplier",
    "text_encoder_lr",
)
"""Arguments that take several values."""

SCRIPT = "the script"
"""Stands for the script's name among the arguments; none of them has a name of two words."""

ENCODERS = (
    "base.encoders names a Diffusers folder with text encoder and VAE; nodes take the graph's."
)
READER = "Reading needs no such setting here."
_ATTENTION = "Attention is torch's own, which takes the fastest that there is."
_UPLOAD = "Nothing is uploaded here."
METADATA = "output.metadata says what a file tells of its making."
_SAVED = "Every checkpoint can be resumed."
DROPOUT = "There of the lower factor's outputs, here of inputs."

SHARED: Table = {
    SCRIPT: Together("family, base.variant"),
    "config_file": Together("all"),
    "dataset_config": Together("dataset"),
    "vae": Lacks(ENCODERS),
    "base_weights": Together("base.adapters"),
    "base_weights_multiplier": Together("base.adapters"),
    "fp8_base": Together("memory.base_format"),
    "fp8_scaled": Together("memory.base_format"),
    "blocks_to_swap": Together("memory.blocks_to_swap"),
    "gradient_checkpointing": Together("memory.gradient_checkpointing"),
    "dynamo_backend": Lacks("memory.compile does it.", (None, "NO", "no")),
    **dict.fromkeys(("sdpa", "xformers", "split_attn"), Lacks(_ATTENTION, ANY)),
    "max_train_steps": Together("training.steps"),
    "max_train_epochs": Together("training.steps"),
    "max_data_loader_n_workers": Lacks(READER, (None, *range(65))),
    "persistent_data_loader_workers": Lacks(READER, ANY),
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
    "log_config": Lacks("A run always keeps its settings.", ANY),
    **dict.fromkeys(
        ("ddp_timeout", "ddp_gradient_as_bucket_view", "ddp_static_graph"),
        Lacks("accelerate launch sets it."),
    ),
    "sample_every_n_steps": Together("preview.every"),
    "sample_at_first": Lacks("The first preview is before step 1.", ANY),
    "sample_every_n_epochs": Together("preview.every"),
    "sample_prompts": Together("preview"),
    "optimizer_type": Together("training.optimizer.name"),
    "optimizer_args": Together("training.optimizer"),
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
    "timestep_sampling": Together("training.sigma.density"),
    "discrete_flow_shift": Together("training.sigma.shift"),
    "sigmoid_scale": Together("training.sigma.std"),
    "weighting_scheme": Together("training.sigma.density, training.loss.weighting"),
    "logit_mean": Together("training.sigma.mean"),
    "logit_std": Together("training.sigma.std"),
    "mode_scale": Together("training.sigma.mode_scale"),
    "min_timestep": Together("training.sigma.min"),
    "max_timestep": Together("training.sigma.max"),
    "no_metadata": Together("output.metadata"),
    "network_weights": Maps("adapter.start_from", text),
    "network_module": Together("adapter.kind"),
    "network_alpha": Maps("adapter.alpha", number, 1.0),
    "network_dropout": Maps("adapter.dropout", number, near=DROPOUT),
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
    "save_state": Lacks(_SAVED, ANY),
    "save_state_on_train_end": Lacks(_SAVED, ANY),
    **dict.fromkeys(
        (
            "training_comment",
            *(f"metadata_{name}" for name in ("title", "author", "description", "license", "tags")),
        ),
        Lacks(METADATA),
    ),
    **dict.fromkeys(
        (
            *("huggingface_repo_id", "huggingface_repo_type", "huggingface_path_in_repo"),
            *("huggingface_token", "huggingface_repo_visibility", "save_state_to_huggingface"),
            *("resume_from_huggingface", "async_upload"),
        ),
        Lacks(_UPLOAD),
    ),
}

NETWORK_ARGS: Table = {
    "rank_dropout": Maps("adapter.rank_dropout", number),
    "module_dropout": Maps("adapter.module_dropout", number),
    "loraplus_lr_ratio": Maps("training.optimizer.lora_plus_ratio", number),
    "factor": Maps("adapter.factor", whole),
    "verbose": Lacks("", EVERY),
}
"""What stands as ``name=value`` behind ``network_args`` in both."""
