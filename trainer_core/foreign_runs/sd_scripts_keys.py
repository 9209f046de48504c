"""The arguments of sd-scripts' trainings of an adapter, beside those it shares with musubi-tuner.

Source: kohya-ss/sd-scripts at 48d368fa, ``library/train_util.py``, ``train_network.py``,
``networks/``, the scripts ``*_train_network.py`` and ``library/*_train_util*.py``; of its networks
KohakuBlueleaf/LyCORIS at f49d30d6, ``lycoris/kohya.py``.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from .kohya import TRAIN, Values, script_word, without_sections
from .kohya_keys import ANY, DROPOUT, ENCODERS, METADATA, NETWORK_ARGS, READER, SHARED
from .musubi_keys import ARGUMENTS as OF_MUSUBI
from .rules import EVERY, Lacks, Maps, Table, Together, flag, number, text, whole
from .sd_scripts_datasets import OF_ALL
from .vocabulary import ENCODED

SCRIPTS = ("", "sdxl_", "flux_", "sd3_", "lumina_", "anima_", "hunyuan_image_")
"""What stands in front of `TRAIN` in the scripts that train an adapter."""

_FROM_MODEL = "The MODEL of the graph says it; ModelSamplingDiscrete behind its loader sets it."
_WHOLE = "Only adapters are trained here."
_UNET = "Noise is mixed in one way here."
_LAYERS = "adapter.rank_pattern gives layers a rank of their own."
_RATES = "training.optimizer.rate_pattern gives layers a rate of their own."
_FLOW = "The velocity is what is predicted here."
_DEEPSPEED = "accelerate launch with FSDP2 divides a base."
_PLACES = "memory.plan places weights by itself."


def _spread(value: Any) -> bool:
    return not flag(value)


ARGUMENTS: Table = {
    **SHARED,
    **{
        key: Together(rule.setting) if isinstance(rule, Maps) else rule
        for key, rule in OF_ALL.items()
    },
    "pretrained_model_name_or_path": Maps("base.path", text),
    "model_type": Together("family"),
    **dict.fromkeys(
        (
            *("clip_l", "clip_g", "t5xxl", "ae", "gemma2", "qwen3", "byt5", "text_encoder"),
            *("llm_adapter_path", "t5_tokenizer_path", "tokenizer_cache_dir"),
        ),
        Lacks(ENCODERS),
    ),
    **dict.fromkeys(("v2", "v_parameterization", "zero_terminal_snr"), Lacks(_FROM_MODEL)),
    "clip_skip": Lacks("CLIP Set Last Layer before Cache Embeddings sets it.", (None, 1)),
    "max_token_length": Lacks("Texts are read to their end.", (None, 75, 150, 225)),
    **dict.fromkeys(
        ("t5xxl_max_token_length", "gemma2_max_token_length", "qwen3_max_token_length"),
        Maps("base.text_length", whole),
    ),
    "t5_max_token_length": Lacks("base.text_length is that of the long text."),
    **dict.fromkeys(
        ("apply_t5_attn_mask", "apply_lg_attn_mask"),
        Lacks("Text is masked as each model was trained.", ANY),
    ),
    "weighted_captions": Maps("dataset.captions.escape_brackets", _spread),
    "system_prompt": Lacks("Write it into dataset.captions.prefix."),
    **dict.fromkeys(
        ("clip_l_dropout_rate", "clip_g_dropout_rate", "t5_dropout_rate"),
        Lacks("dataset.caption_dropout holds for the whole text."),
    ),
    "controlnet_model_name_or_path": Lacks("There is no second model beside the base."),
    "train_batch_size": Maps("training.batch_size", whole, 1),
    "train_data_dir": Together("dataset.path, dataset.layout"),
    "reg_data_dir": Together("dataset.folders"),
    "in_json": Lacks("Write its captions into a metadata.jsonl beside the images."),
    "dataset_repeats": Together("dataset.num_repeats"),
    "dataset_class": Lacks("Datasets of other code are not loaded."),
    "prior_loss_weight": Together("dataset.folders (weight)"),
    "masked_loss": Together("dataset.mask, dataset.mask_folder"),
    "conditioning_data_dir": Lacks("That program reads it in its file of datasets.", EVERY),
    "debug_dataset": Lacks("The verb dataset reports on it.", ANY),
    "output_config": Lacks("template --from writes a run file.", ANY),
    **dict.fromkeys(
        (
            *("cache_latents", "cache_latents_to_disk", "skip_cache_check", "vae_batch_size"),
            *("cache_text_encoder_outputs", "cache_text_encoder_outputs_to_disk"),
            *("text_encoder_batch_size", "no_half_vae", "vae_chunk_size", "vae_disable_cache"),
            *("t5xxl_device", "t5xxl_dtype", "text_encoder_cpu", "fp8_vl", "sample_batch_size"),
        ),
        Lacks(ENCODED, EVERY),
    ),
    "validation_split": Maps("dataset.validation.share", number),
    "validation_seed": Lacks("The seed of the run draws them.", EVERY),
    "validate_every_n_steps": Maps("dataset.validation.every", whole),
    "validate_every_n_epochs": Together("dataset.validation.every"),
    "max_validation_steps": Lacks("dataset.validation.most says how many are measured."),
    "learning_rate": Together("training.optimizer.learning_rate"),
    "unet_lr": Together("training.optimizer.learning_rate"),
    "text_encoder_lr": Together("training.text_encoder.learning_rate"),
    "network_train_unet_only": Together("training.text_encoder.train"),
    "network_train_text_encoder_only": Lacks("The denoiser is always trained."),
    **dict.fromkeys(
        ("self_attn_lr", "cross_attn_lr", "mlp_lr", "mod_lr", "llm_adapter_lr"), Lacks(_RATES)
    ),
    "use_8bit_adam": Together("training.optimizer.name"),
    "use_lion_optimizer": Together("training.optimizer.name"),
    "fused_backward_pass": Lacks("Gradients are of the adapter alone, which is small.", ANY),
    "network_dim": Together("adapter.rank"),
    "min_snr_gamma": Together("training.loss.weighting, training.loss.snr_gamma"),
    "debiased_estimation_loss": Together("training.loss.weighting"),
    "scale_v_pred_loss_like_noise_pred": Lacks("There is no such weighting here."),
    "v_pred_like_loss": Lacks("There is no such weighting here."),
    "noise_offset": Together("training.loss.noise_offset"),
    "noise_offset_random_strength": Lacks("training.loss.noise_offset is the same in each step."),
    **dict.fromkeys(
        ("multires_noise_iterations", "adaptive_noise_scale", "ip_noise_gamma"), Lacks(_UNET)
    ),
    "ip_noise_gamma_random_strength": Lacks(_UNET),
    "multires_noise_discount": Lacks(_UNET, EVERY),
    "loss_type": Together("training.loss.kind"),
    "huber_c": Together("training.loss.huber_delta"),
    "huber_scale": Together("training.loss.huber_delta"),
    "huber_schedule": Together("training.loss.huber_schedule"),
    "guidance_scale": Together("training.guidance"),
    "model_prediction_type": Together("nothing but raw"),
    "training_shift": Together("training.sigma.shift"),
    "pos_emb_random_crop_rate": Lacks(_UNET),
    "enable_scaled_pos_embed": Lacks(_UNET),
    "fp8_base_unet": Together("memory.base_format"),
    "full_fp16": Lacks("The adapter's weights are always fp32."),
    "full_bf16": Lacks("The adapter's weights are always fp32."),
    "cpu_offload_checkpointing": Together("memory.checkpoint_inputs"),
    "unsloth_offload_checkpointing": Lacks("memory.checkpoint_inputs does it."),
    "split_mode": Lacks("memory.blocks_to_swap does it."),
    **dict.fromkeys(("lowram", "highvram"), Lacks(_PLACES, ANY)),
    "disable_mmap_load_safetensors": Lacks(READER, ANY),
    "torch_compile": Maps("memory.compile", flag),
    "dynamo_backend": Lacks("memory.compile does it.", (None, "NO", "no", "inductor")),
    **dict.fromkeys(
        ("mem_eff_attn", "use_flash_attn", "use_sage_attn", "attn_mode"),
        Lacks("Attention is torch's own, which takes the fastest that there is.", EVERY),
    ),
    "sample_sampler": Lacks("Previews are made as KSampler makes them with euler.", EVERY),
    "save_model_as": Lacks("Files are safetensors.", (None, "safetensors")),
    "use_safetensors": Lacks("Files are safetensors.", ANY),
    "save_n_epoch_ratio": Lacks("training.checkpoint_every counts steps."),
    "save_clip": Lacks(_WHOLE),
    "save_t5xxl": Lacks(_WHOLE),
    **dict.fromkeys(
        ("skip_until_initial_step", "initial_epoch", "initial_step"),
        Lacks("A run goes on where its checkpoint says."),
    ),
    **dict.fromkeys(
        [
            f"metadata_{name}"
            for name in (
                *("usage_hint", "thumbnail", "merged_from", "trigger_phrase", "preprocessor"),
                "is_negative_embedding",
            )
        ],
        Lacks(METADATA),
    ),
    **dict.fromkeys(
        (
            *("deepspeed", "offload_optimizer_device", "offload_optimizer_nvme_path"),
            *("offload_param_device", "offload_param_nvme_path", "zero3_init_flag"),
            *("zero3_save_16bit_model", "fp16_master_weights_and_gradients"),
        ),
        Lacks(_DEEPSPEED),
    ),
    "zero_stage": Lacks(_DEEPSPEED, EVERY),
}

NETWORK: Table = {
    **NETWORK_ARGS,
    "algo": Together("adapter.kind"),
    "preset": Together("adapter.targets"),
    "conv_dim": Together("adapter.targets"),
    "conv_alpha": Lacks("Convolutions have adapter.alpha, too.", EVERY),
    "loraplus_unet_lr_ratio": Maps("training.optimizer.lora_plus_ratio", number),
    "loraplus_text_encoder_lr_ratio": Lacks("training.optimizer.lora_plus_ratio holds for it."),
    "train_blocks": Together("adapter.targets"),
    "train_double_block_indices": Together("adapter.targets"),
    "train_single_block_indices": Together("adapter.targets"),
    "split_qkv": Lacks("Queries, keys and values are layers of their own here.", EVERY),
    "train_t5xxl": Lacks("Of the text encoders CLIP alone is trained here.", (None, "False")),
    "dropout": Maps("adapter.dropout", number, near=DROPOUT),
    "decompose_both": Maps("adapter.decompose_both", flag),
    "full_matrix": Maps("adapter.full_matrix", flag),
    "unbalanced_factorization": Maps("adapter.unbalanced", flag),
    "use_tucker": Maps("adapter.tucker", flag),
    "use_cp": Maps("adapter.tucker", flag),
    "use_conv_cp": Maps("adapter.tucker", flag),
    "disable_conv_cp": Lacks("", EVERY),
    "rs_lora": Maps("adapter.rslora", flag),
    "dora_wd": Maps("adapter.dora", flag),
    "wd_on_output": Together("adapter.dora_axis"),
    "use_scalar": Lacks("There is no further factor of a layer here.", (None, "False")),
    "train_norm": Lacks("Norms are not trained here.", (None, "False")),
    "bypass_mode": Lacks("It computes the same in another way.", EVERY),
    **dict.fromkeys(
        ("block_size", "constraint", "rescaled", "unit", "enable_all_linear", "enable_conv"),
        Lacks("The kinds here have no such number."),
    ),
    **dict.fromkeys(
        (
            *("img_attn_dim", "txt_attn_dim", "img_mlp_dim", "txt_mlp_dim", "img_mod_dim"),
            *("txt_mod_dim", "single_dim", "single_mod_dim", "in_dims", "emb_dims"),
            *("context_attn_dim", "context_mlp_dim", "context_mod_dim", "x_attn_dim", "x_mlp_dim"),
            *("x_mod_dim", "attn_dim", "mlp_dim", "mod_dim", "refiner_dim", "embedder_dims"),
            *("block_dims", "block_alphas", "conv_block_dims", "conv_block_alphas"),
            "network_reg_dims",
        ),
        Lacks(_LAYERS),
    ),
    **dict.fromkeys(
        (
            *("down_lr_weight", "mid_lr_weight", "up_lr_weight", "block_lr_zero_threshold"),
            "network_reg_lrs",
        ),
        Lacks(_RATES),
    ),
    "train_block_indices": Lacks("adapter.targets takes patterns of names."),
    "ggpo_beta": Lacks(_UNET),
    "ggpo_sigma": Lacks(_UNET),
}
"""``network_args`` of its own networks and of LyCORIS."""

_OWN = ARGUMENTS.keys() - OF_MUSUBI.keys()
_OTHERS = OF_MUSUBI.keys() - ARGUMENTS.keys()
_TELLING = {
    *("network_module", "network_dim", "network_alpha", "network_args", "train_data_dir"),
    *("dataset_config", "network_train_unet_only"),
}


def has_subsets(values: Values) -> bool:
    """Whether a file lists datasets with subsets."""
    found = values.get("datasets")
    return isinstance(found, list) and any(
        isinstance(each, Mapping) and "subsets" in each for each in found
    )


def is_of_sd_scripts(values: Values) -> bool:
    """Whether a file has arguments of a training of sd-scripts, or its datasets."""
    if script := script_word(values):
        return script in [f"{each}{TRAIN}" for each in SCRIPTS]
    keys = without_sections(values).keys()
    own = len(keys & _OWN) > len(keys & _OTHERS)
    return has_subsets(values) or bool(own and keys & _TELLING)
