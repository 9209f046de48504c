"""The keys of ai-toolkit's run files.

Source: ostris/ai-toolkit at 27a03a91, ``toolkit/config_modules.py`` and
``jobs/process/BaseSDTrainProcess.py``.
"""

from __future__ import annotations

from .ai_toolkit_datasets import TRIGGER
from .rules import EVERY, Lacks, Maps, Table, Together, flag, number, text, whole, word_of
from .vocabulary import FILE_DTYPE, PRECISION, PRECISION_EXACT, PRECISION_NEAR, containing

DISPLAY = "It is about what the program shows, not about training."
_OTHER_MODELS = "It is for other models than those that are trained here."
_ADAPTERS = "Only adapters of the denoiser are trained here."
EXPERIMENT = "An experiment of that program, without counterpart."
_MEMORY = "memory.plan places weights by itself."
_NEVER = "It is never so here."
_ALWAYS = "It is always so here."

BASE_FORMAT = word_of(
    {
        **dict.fromkeys(("qfloat8", "float8", "float8_e4m3fn", "fp8"), "fp8"),
        **dict.fromkeys(("qint8", "int8", "uint8", "uint7", "uint6", "convrot8"), "int8"),
        **dict.fromkeys(("uint5", "uint4", "uint3", "uint2", "qint4", "int4", "convrot4"), "nf4"),
    }
)

PROCESS: Table = {
    "type": Together("which kind of training"),
    "training_folder": Maps("output.dir", text),
    "sqlite_db_path": Lacks(DISPLAY, EVERY),
    "device": Maps("memory.device", text),
    "performance_log_every": Lacks(DISPLAY, EVERY),
    "trigger_word": Maps(
        "dataset.trigger_word",
        text,
        near=TRIGGER,
    ),
    "network": Together("adapter"),
    "save": Together("training, output"),
    "datasets": Together("dataset"),
    "train": Together("training"),
    "model": Together("family, base, memory"),
    "sample": Together("preview"),
    "logging": Together("metrics"),
    "first_sample": Lacks("All previews are made in the same way."),
    "guidance": Lacks(EXPERIMENT),
    "slider": Together("dataset.slider"),
    "embedding": Lacks(_ADAPTERS),
    "decorator": Lacks(_ADAPTERS),
    "adapter": Lacks(_ADAPTERS),
    "do_lorm": Lacks(_ADAPTERS),
    "lorm_extract_mode": Lacks(_ADAPTERS),
    "lorm_extract_mode_param": Lacks(_ADAPTERS),
    "torch_profiler": Lacks(DISPLAY, EVERY),
}

NETWORK: Table = {
    "type": Together("adapter.kind"),
    "rank": Together("adapter.rank"),
    "linear": Together("adapter.rank"),
    "alpha": Together("adapter.alpha"),
    "linear_alpha": Together("adapter.alpha"),
    "conv": Lacks("The layers that are adapted have no convolutions."),
    "conv_alpha": Lacks("The layers that are adapted have no convolutions."),
    "dropout": Maps("adapter.dropout", number),
    "network_kwargs.only_if_contains": Maps(
        "adapter.targets", containing, near="Its names may be the model's own, not Diffusers'."
    ),
    "network_kwargs.ignore_if_contains": Maps(
        "adapter.exclude", containing, near="Its names may be the model's own, not Diffusers'."
    ),
    "lorm": Lacks(_ADAPTERS),
    "transformer_only": Together("adapter.targets"),
    "all_layers": Together("adapter.targets"),
    "lokr_full_rank": Together("adapter.full_matrix"),
    "lokr_factor": Together("adapter.factor"),
    "old_lokr_format": Lacks("output.layouts says how files are named."),
    "split_multistage_loras": Lacks(_OTHER_MODELS, (None, True, False)),
    "layer_offloading": Lacks("An adapter always stays on the device."),
    "pretrained_lora_path": Maps("adapter.start_from", text),
}

SAVE: Table = {
    "save_every": Maps("training.checkpoint_every", whole, 1000),
    "dtype": Maps("output.dtype", FILE_DTYPE, "fp16"),
    "max_step_saves_to_keep": Maps("training.keep_checkpoints", whole, 5),
    "save_format": Lacks("output.layouts says how files are named.", (None, "safetensors")),
    "push_to_hub": Lacks("Nothing is uploaded here."),
    "hf_repo_id": Lacks("Nothing is uploaded here."),
    "hf_private": Lacks("Nothing is uploaded here.", (None, False, True)),
}

LOGGING: Table = {
    "log_every": Lacks("Every step is written down."),
    "verbose": Lacks(DISPLAY, EVERY),
    "use_wandb": Together("metrics.trackers"),
    "use_ui_logger": Lacks(DISPLAY, EVERY),
    "project_name": Lacks("The run's name is output.name.", EVERY),
    "run_name": Lacks("The run's name is output.name.", EVERY),
}

OLDER_MODELS = {
    "is_flux": "flux",
    **{f"is_{name}": name for name in ("xl", "v3", "v2", "pixart", "pixart_sigma", "auraflow")},
    "is_lumina2": "lumina2",
}
"""Keys that said the architecture before ``arch`` did, to its word."""

MODEL: Table = {
    "name_or_path": Maps("base.path", text),
    "arch": Together("family, base.variant, adapter.targets"),
    "is_flux": Together("family"),
    **dict.fromkeys(
        ("is_v2", "is_xl", "is_v3", "is_pixart", "is_pixart_sigma", "is_auraflow", "is_lumina2"),
        Lacks(_OTHER_MODELS),
    ),
    **dict.fromkeys(("is_ssd", "is_vega", "is_v_pred", "experimental_xl"), Lacks(_OTHER_MODELS)),
    "assistant_lora_path": Together("base.adapters"),
    "inference_lora_path": Lacks("Previews are made with the base that is trained."),
    "lora_path": Together("base.adapters"),
    "unconditional_lora_path": Lacks(EXPERIMENT),
    "accuracy_recovery_adapter": Together("base.adapters"),
    "quantize": Together("memory.base_format"),
    "qtype": Together("memory.base_format"),
    "quantize_te": Lacks("Text encoders are not in memory while it trains.", (None, True, False)),
    "qtype_te": Lacks("Text encoders are not in memory while it trains.", (None, "qfloat8")),
    "quantize_kwargs": Lacks(_MEMORY),
    "low_vram": Lacks(_MEMORY, (None, True, False)),
    "auto_memory": Lacks(_MEMORY, (None, True, False)),
    "layer_offloading": Lacks(_MEMORY, (None, True, False)),
    "layer_offloading_transformer_percent": Lacks(_MEMORY, (None, 1.0)),
    "layer_offloading_text_encoder_percent": Lacks(_MEMORY, (None, 1.0)),
    "split_model_over_gpus": Lacks("accelerate launch trains on several GPUs."),
    "split_model_other_module_param_count_scale": Lacks("accelerate launch does."),
    "dtype": Lacks("training.precision says in what is computed.", (None, "bf16", "float16")),
    "vae_path": Lacks("base.encoders names a Diffusers folder with VAE and text encoder."),
    "te_name_or_path": Lacks("base.encoders names a Diffusers folder that has it."),
    "extras_name_or_path": Maps("base.encoders", text, near="A Diffusers folder, not a hub id."),
    "unet_path": Maps("base.path", text),
    "compile": Together("memory.compile"),
    "block_compile": Together("memory.compile"),
    **dict.fromkeys(
        ("compile_mode", "compile_fullgraph", "compile_dynamic", "cache_size_limit"),
        Lacks("Blocks are compiled in one way.", (None, "default", False, True)),
    ),
    **dict.fromkeys(
        ("vae_device", "te_device", "vae_dtype", "te_dtype", "text_encoder_bits"),
        Lacks("Encoders work before the training, each as its model wants."),
    ),
    **dict.fromkeys(("use_text_encoder_1", "use_text_encoder_2"), Lacks(_ALWAYS, (None, True))),
    **dict.fromkeys(
        ("refiner_name_or_path", "refiner_start_at", "unet_sample_size", "latent_space_version"),
        Lacks(_OTHER_MODELS),
    ),
    "use_flux_cfg": Lacks(EXPERIMENT),
    "attn_masking": Lacks("Text is masked as each model was trained.", (None, True, False)),
    "ignore_if_contains": Maps("adapter.exclude", containing),
    "only_if_contains": Maps("adapter.targets", containing),
    "model_kwargs": Lacks(EXPERIMENT),
    "model_paths": Lacks("base.path is a Diffusers folder, a single file or a hub id."),
    "in_context": Lacks(EXPERIMENT),
}

SAMPLE: Table = {
    "sampler": Lacks("Previews are sampled as the base's own scheduler says.", (None, "flowmatch")),
    "sample_every": Together("preview.every"),
    "sample_start_step": Lacks("Previews begin before step 1."),
    "width": Maps("preview.width", whole, 512),
    "height": Maps("preview.height", whole, 512),
    "neg": Together("preview.negative_prompt"),
    "seed": Maps("preview.seed", whole),
    "walk_seed": Lacks("Seeds always count up with the prompts.", (None, True)),
    "guidance_scale": Maps("preview.guidance", number, 7.0),
    "sample_steps": Maps("preview.steps", whole, 20),
    "prompts": Together("preview.prompts"),
    "samples": Together("preview.prompts, preview.controls"),
    "network_multiplier": Lacks("Previews are made at strength 1.", (None, 1, 1.0, "1.0")),
    "format": Lacks("Previews are PNG files.", (None, "jpg", "png", "webp")),
    "guidance_rescale": Lacks(EXPERIMENT, (None, 0)),
    "do_cfg_norm": Lacks("It is so for the families that were made so.", (None, True, False)),
    "adapter_conditioning_scale": Lacks(_ADAPTERS, (None, 1)),
    "refiner_start_at": Lacks(_OTHER_MODELS),
    "extra_values": Lacks(EXPERIMENT),
    "num_frames": Lacks("Videos are not trained here.", (None, 1)),
    "fps": Lacks("Videos are not trained here.", (None, 1, 16)),
}

TRAIN: Table = {
    "steps": Maps("training.steps", whole, 1000),
    "batch_size": Maps("training.batch_size", whole, 1),
    "lr": Together("training.optimizer.learning_rate"),
    "unet_lr": Together("training.optimizer.learning_rate"),
    "text_encoder_lr": Together("training.text_encoder.learning_rate"),
    "optimizer": Together("training.optimizer.name"),
    "optimizer_params": Together("training.optimizer"),
    "lr_scheduler": Together("training.schedule.name"),
    "lr_scheduler_params": Together("training.schedule"),
    "gradient_accumulation": Together("training.gradient_accumulation_steps"),
    "gradient_accumulation_steps": Together("training.gradient_accumulation_steps"),
    "gradient_checkpointing": Maps("memory.gradient_checkpointing", flag),
    "max_grad_norm": Maps("training.max_grad_norm", number),
    "dtype": Maps("training.precision", PRECISION, "fp32", PRECISION_NEAR, PRECISION_EXACT),
    "timestep_type": Together("training.sigma.density"),
    "content_or_style": Together("training.sigma.density"),
    "content_or_style_reg": Lacks("Regularization images have the same noise.", (None, "balanced")),
    "linear_timesteps": Together("training.sigma.density"),
    "linear_timesteps2": Together("training.sigma.density"),
    "min_denoising_steps": Together("training.sigma.max"),
    "max_denoising_steps": Together("training.sigma.min"),
    "noise_scheduler": Lacks("Only flow matching is trained here.", (None, "flowmatch", "ddpm")),
    "num_train_timesteps": Lacks("Noise levels are continuous.", (None, 1000)),
    "loss_type": Together("training.loss.kind"),
    "min_snr_gamma": Together("training.loss.weighting"),
    "snr_gamma": Together("training.loss.weighting"),
    "noise_offset": Maps("training.loss.noise_offset", number),
    "do_differential_guidance": Together("training.loss.differential_guidance"),
    "differential_guidance_scale": Together("training.loss.differential_guidance"),
    "ema_config": Together("training.ema"),
    "diff_output_preservation": Together("dataset.preservation"),
    "diff_output_preservation_multiplier": Together("dataset.preservation.share"),
    "diff_output_preservation_class": Together("dataset.preservation.class_word"),
    "blank_prompt_preservation": Together("dataset.preservation"),
    "blank_prompt_preservation_multiplier": Together("dataset.preservation.share"),
    "reg_weight": Together("dataset.folders (weight)"),
    "train_text_encoder": Together("training.text_encoder.train"),
    "train_unet": Lacks("The denoiser is always trained.", (None, True)),
    "prompt_dropout_prob": Together("dataset.caption_dropout"),
    "disable_sampling": Together("preview.every"),
    "skip_first_sample": Lacks("The first preview is before step 1.", (None, True, False)),
    "force_first_sample": Lacks("The first preview is before step 1.", (None, True, False)),
    "short_and_long_captions": Lacks(
        "Captions of both lengths take turns (dataset.captions).",
    ),
    "bypass_guidance_embedding": Lacks("training.guidance is what distilled bases are told."),
    "validation_config": Lacks("dataset.validation holds images out of the dataset."),
    **dict.fromkeys(
        (
            *("cache_text_embeddings", "unload_text_encoder", "xformers", "sdp"),
            *("attention_backend", "start_step"),
        ),
        Lacks(
            "Texts are always encoded once; attention is torch's own.",
            (None, True, False, "native", 0),
        ),
    ),
    **dict.fromkeys(
        (
            *("refiner_lr", "embedding_lr", "adapter_lr", "train_refiner", "free_u"),
            *("adapter_assist_name_or_path", "adapter_assist_type", "match_adapter_assist"),
            *("match_adapter_chance", "short_and_long_captions_encoder_split"),
            *("negative_prompt", "max_negative_prompts", "merge_network_on_save"),
            *("merge_network_on_save_strength", "do_paramiter_swapping"),
            *("paramiter_swapping_factor", "switch_boundary_every", "audio_loss_multiplier"),
        ),
        Lacks(_OTHER_MODELS, (None, True, False, 0, 0.0, 1, 1.0, "", "t2i", 0.1)),
    ),
    **dict.fromkeys(
        (
            *("train_turbo", "show_turbo_outputs", "learnable_snr_gos", "weight_jitter"),
            *("noise_multiplier", "target_noise_multiplier", "random_noise_multiplier"),
            *("do_signal_correction_noise", "signal_correction_noise_scale"),
            *("do_batch_noise_correction", "batch_noise_correction_scale"),
            *("do_signal_amplification", "signal_amplification_strength"),
            *("random_noise_shift", "img_multiplier", "noisy_latent_multiplier"),
            *("latent_multiplier", "adaptive_scaling_factor", "match_noise_norm"),
            *("single_item_batching", "loss_target", "inverted_mask_prior"),
            *("inverted_mask_prior_multiplier", "standardize_images", "standardize_latents"),
            *("dynamic_noise_offset", "do_cfg", "do_random_cfg", "cfg_scale", "max_cfg_scale"),
            *("cfg_rescale", "correct_pred_norm", "correct_pred_norm_multiplier"),
            *("t0_loss_target", "t0_velocity_equiv_weight", "do_fft_loss"),
            *("do_fft_velocity_equiv_weight", "pred_scaler", "prompt_saturation_chance"),
            *("do_prior_divergence", "target_norm_std", "target_norm_std_value"),
            *("next_sample_timesteps", "latent_feature_extractor_path"),
            *("latent_feature_loss_weight", "diffusion_feature_extractor_path"),
            *("diffusion_feature_extractor_weight", "optimal_noise_pairing_samples"),
            *("force_consistent_noise", "blended_blur_noise", "do_guidance_loss"),
            *("guidance_loss_target", "do_guidance_loss_cfg_zero", "guidance_loss_schedule"),
            *("unconditional_prompt", "do_blank_stabilization", "max_loss_debug", "max_loss"),
        ),
        Lacks(EXPERIMENT, (None, False, 0, 0.0, 1, 1.0, 0.5, 0.1, "noise", "", "constant", 8)),
    ),
}
