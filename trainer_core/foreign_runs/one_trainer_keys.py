"""The keys of OneTrainer's configuration.

Source: Nerogar/OneTrainer at 23df3832, ``modules/util/config/TrainConfig.py``.
"""

from __future__ import annotations

from .rules import EVERY, Lacks, Maps, Table, Together, flag, number, text, whole
from .vocabulary import FILE_DTYPE, PRECISION, PRECISION_EXACT, PRECISION_NEAR

_PROGRAM = "It is about the program, not about training."
_OTHER_MODELS = "It is for other models than those that are trained here."
_EMBEDDINGS = "Embeddings are not trained here."
_ENCODERS = "Encoders work before the training, and leave."
_DISTRIBUTED = "accelerate launch trains on several GPUs."
_PARTS = (
    *("unet", "prior", "unconditional_transformer", "text_encoder_2", "text_encoder_3"),
    *("text_encoder_4", "vae", "effnet_encoder", "decoder", "decoder_text_encoder"),
    "decoder_vqgan",
)
_ANY = (None, True, False)

CONFIG: Table = {
    "__version": Lacks(_PROGRAM, (None, *range(20))),
    "training_method": Together("whether it is read"),
    "model_type": Together("family, base.variant"),
    "base_model_name": Maps("base.path", text, "stable-diffusion-v1-5/stable-diffusion-v1-5"),
    "output_dtype": Maps("output.dtype", FILE_DTYPE),
    "output_model_format": Lacks(
        "output.layouts says how files are named.", (None, "SAFETENSORS", "DIFFUSERS_LORA")
    ),
    "output_model_destination": Together("output.name, output.dir"),
    "workspace_dir": Lacks("A run has a folder below output.dir.", EVERY),
    "cache_dir": Maps("cache.dir", text),
    "latent_caching": Lacks("Images are always encoded once.", _ANY),
    "clear_cache_before_training": Lacks("What changed is encoded again by itself.", _ANY),
    "only_cache": Lacks("The verb cache does it."),
    "continue_last_backup": Lacks("Say resume=latest when you go on."),
    "concept_file_name": Together("dataset"),
    "concepts": Together("dataset"),
    "sample_definition_file_name": Together("preview"),
    "samples": Together("preview"),
    "sample_after": Together("preview.every"),
    "sample_after_unit": Together("preview.every"),
    "sample_skip_first": Lacks("Previews begin before step 1."),
    "non_ema_sampling": Together("training.ema.previews"),
    **dict.fromkeys(
        (
            *("sample_image_format", "sample_video_format", "sample_audio_format"),
            *("samples_to_tensorboard", "tensorboard_expose", "tensorboard_always_on"),
            *("tensorboard_port", "debug_mode", "debug_dir", "huggingface_cache_dir"),
            *("offline_mode", "prevent_overwrites", "include_train_config", "dataloader_threads"),
            *("temp_device", "secrets", "cloud", "save_filename_prefix", "weight_dtype"),
        ),
        Lacks(_PROGRAM, EVERY),
    ),
    "tensorboard": Together("metrics.trackers"),
    "validation": Lacks("dataset.validation; concepts of type VALIDATION are held out.", _ANY),
    "validate_after": Lacks("dataset.validation.every counts steps.", (None, 1)),
    "validate_after_unit": Lacks("dataset.validation.every counts steps.", (None, "EPOCH")),
    "epochs": Together("training.steps"),
    "batch_size": Maps("training.batch_size", whole),
    "gradient_accumulation_steps": Maps("training.gradient_accumulation_steps", whole),
    "learning_rate": Together("training.optimizer.learning_rate"),
    "learning_rate_scaler": Together("training.optimizer.learning_rate"),
    "learning_rate_scheduler": Together("training.schedule.name"),
    "custom_learning_rate_scheduler": Lacks("Code of other libraries is not loaded."),
    "scheduler_params": Lacks("Code of other libraries is not loaded."),
    "learning_rate_warmup_steps": Together("training.schedule.warmup_steps, warmup_share"),
    "learning_rate_cycles": Together("training.schedule.cycles"),
    "learning_rate_min_factor": Together("training.schedule.min_ratio"),
    "clip_grad_norm": Maps("training.max_grad_norm", number),
    "optimizer": Together("training.optimizer"),
    "optimizer_defaults": Lacks("It is what the program's own dialog remembers.", EVERY),
    "ema": Together("training.ema"),
    "ema_decay": Together("training.ema.decay"),
    "ema_update_step_interval": Together("training.ema.decay"),
    "train_device": Maps("memory.device", text),
    "train_dtype": Maps(
        "training.precision", PRECISION, near=PRECISION_NEAR, exact=PRECISION_EXACT
    ),
    "fallback_train_dtype": Lacks("training.precision chooses.", (None, "BFLOAT_16")),
    "enable_autocast_cache": Lacks("The adapter's weights are always fp32.", _ANY),
    "async_offloading": Lacks("memory.plan places weights by itself.", _ANY),
    "compile": Maps("memory.compile", flag),
    "attention_mechanism": Lacks(
        "Attention is torch's own.", (None, "SDP", "DEFAULT", "FLASH", "FLASH_SPLIT", "CUDNN")
    ),
    "force_circular_padding": Lacks(_OTHER_MODELS),
    "resolution": Together("dataset.resolution, dataset.more_resolutions"),
    "frames": Lacks("Videos are not trained here.", (None, "25", "1", 1)),
    "aspect_ratio_bucketing": Lacks("Images are always put into buckets.", (None, True)),
    "mse_strength": Together("training.loss.kind"),
    "mae_strength": Together("training.loss.kind"),
    "huber_strength": Together("training.loss.kind"),
    "log_cosh_strength": Together("training.loss.kind"),
    "huber_delta": Together("training.loss.huber_delta"),
    "vb_loss_strength": Lacks(_OTHER_MODELS, (None, 1, 1.0)),
    "loss_weight_fn": Together("training.loss.weighting"),
    "loss_weight_strength": Together("training.loss.snr_gamma"),
    "dropout_probability": Maps("adapter.dropout", number),
    "loss_scaler": Lacks("Losses are means over all samples of a step.", (None, "NONE")),
    "offset_noise_weight": Maps("training.loss.noise_offset", number),
    "generalized_offset_noise": Lacks(_OTHER_MODELS),
    "perturbation_noise_weight": Lacks("There is no second noise here."),
    "rescale_noise_scheduler_to_zero_terminal_snr": Lacks(_OTHER_MODELS),
    "force_v_prediction": Lacks(_OTHER_MODELS),
    "force_epsilon_prediction": Lacks(_OTHER_MODELS),
    "min_noising_strength": Together("training.sigma.min"),
    "max_noising_strength": Together("training.sigma.max"),
    "timestep_distribution": Together("training.sigma.density"),
    "noising_weight": Together("training.sigma"),
    "noising_bias": Together("training.sigma"),
    "timestep_shift": Together("training.sigma.shift"),
    "dynamic_timestep_shifting": Together("training.sigma.density"),
    "gradient_checkpointing": Together("memory.gradient_checkpointing"),
    **dict.fromkeys(
        ("enable_activation_offloading", "enable_async_offloading", "layer_offload_fraction"),
        Lacks("memory.plan places weights by itself.", (*_ANY, 0.0)),
    ),
    "transformer.model_name": Maps("base.path", text),
    "transformer.weight_dtype": Together("memory.base_format, memory.compute"),
    "transformer.learning_rate": Together("training.optimizer.learning_rate"),
    "transformer.gradient_checkpointing": Together("memory.gradient_checkpointing"),
    "transformer.guidance_scale": Maps("training.guidance", number),
    "transformer.attention_mask": Lacks("Text is masked as each model was trained.", _ANY),
    "transformer.offload_fraction": Lacks("memory.plan places weights by itself.", EVERY),
    "transformer.activation_offloading": Lacks("memory.checkpoint_inputs does it.", _ANY),
    "transformer.train": Lacks("The denoiser is always trained.", (None, True)),
    "transformer.include": Lacks("The denoiser is always trained.", (None, True)),
    **dict.fromkeys(
        (
            *("transformer.stop_training_after", "transformer.stop_training_after_unit"),
            *("transformer.dropout_probability", "transformer.train_embedding"),
            "transformer.__version",
        ),
        Lacks("The denoiser is trained to the end.", (*_ANY, 0, "NEVER")),
    ),
    "text_encoder.train": Together("training.text_encoder.train"),
    "text_encoder.learning_rate": Together("training.text_encoder.learning_rate"),
    **dict.fromkeys(
        [
            f"text_encoder.{name}"
            for name in (
                *("__version", "model_name", "include", "stop_training_after", "weight_dtype"),
                *("stop_training_after_unit", "dropout_probability", "train_embedding"),
                *("attention_mask", "guidance_scale", "gradient_checkpointing"),
                *("offload_fraction", "activation_offloading"),
            )
        ],
        Lacks(_ENCODERS, EVERY),
    ),
    "text_encoder_sequence_length": Maps("base.text_length", whole),
    "text_encoder_2_sequence_length": Lacks("base.text_length is that of the long text."),
    **dict.fromkeys(
        [f"text_encoder{number}_layer_skip" for number in ("", "_2", "_3", "_4")],
        Lacks("Texts are read as each model was trained.", (None, 0)),
    ),
    **dict.fromkeys(_PARTS, Lacks(_ENCODERS, EVERY)),
    "quantization": Lacks("memory.base_format holds for the blocks of the base.", EVERY),
    "masked_training": Together("dataset.mask.source"),
    "unmasked_probability": Lacks("Masks are used in every step."),
    "unmasked_weight": Together("dataset.mask.background"),
    "normalize_masked_area_loss": Together("dataset.mask.normalize"),
    "masked_prior_preservation_weight": Lacks("dataset.preservation holds whole images."),
    "custom_conditioning_image": Lacks("Control images lie in a folder of their own."),
    "peft_type": Together("adapter.kind"),
    "lora_model_name": Maps("adapter.start_from", text),
    "lora_rank": Together("adapter.rank"),
    "lora_alpha": Together("adapter.alpha"),
    "lora_decompose": Together("adapter.dora"),
    "lora_decompose_norm_epsilon": Together("adapter.dora"),
    "lora_decompose_output_axis": Together("adapter.dora_axis"),
    "lora_weight_dtype": Lacks("The adapter's weights are always fp32.", (None, "FLOAT_32")),
    "bundle_additional_embeddings": Lacks(_EMBEDDINGS, _ANY),
    "oft_block_size": Together("adapter.rank"),
    "oft_block_share": Together("adapter.kind"),
    "oft_scaled": Together("adapter.kind"),
    "lokr_dim": Together("adapter.rank"),
    "lokr_decompose_both": Together("adapter.decompose_both"),
    "lokr_decompose_factor": Together("adapter.factor"),
    "lokr_use_tucker": Together("adapter.tucker"),
    "lokr_weight_decompose": Together("adapter.dora"),
    "lokr_dora_on_output": Together("adapter.dora_axis"),
    "lokr_full_matrix": Together("adapter.full_matrix"),
    "lokr_vec_trick": Together("adapter.kind"),
    "layer_filter": Together("adapter.targets"),
    "layer_filter_preset": Together("adapter.targets"),
    "layer_filter_regex": Together("adapter.targets"),
    **dict.fromkeys(
        (
            *("embedding_learning_rate", "preserve_embedding_norm", "embedding"),
            *("additional_embeddings", "embedding_weight_dtype"),
        ),
        Lacks(_EMBEDDINGS, EVERY),
    ),
    **dict.fromkeys(
        (
            *("multi_gpu", "device_indexes", "gradient_reduce_precision", "fused_gradient_reduce"),
            *("async_gradient_reduce", "async_gradient_reduce_buffer"),
        ),
        Lacks(_DISTRIBUTED, (*_ANY, "", 100, "FLOAT_32_STOCHASTIC", "FLOAT_32")),
    ),
    "backup_after": Together("training.checkpoint_minutes, training.checkpoint_every"),
    "backup_after_unit": Together("training.checkpoint_minutes, training.checkpoint_every"),
    "rolling_backup": Together("training.keep_checkpoints"),
    "rolling_backup_count": Together("training.keep_checkpoints"),
    "backup_before_save": Lacks("Every checkpoint can be resumed.", _ANY),
    "save_every": Together("training.keep_every"),
    "save_every_unit": Together("training.keep_every"),
    "save_skip_first": Lacks("Checkpoints are kept from the start."),
}
