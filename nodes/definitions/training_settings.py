"""The node Training Settings: everything that has a good default."""

from __future__ import annotations

from typing import Any

from comfy_api.latest import io

from . import input_checks, sockets
from .setting_inputs import SettingInput, section_values


class TrainingSettings(io.ComfyNode):
    """Batch, schedule, noise levels, memory, previews and checkpoints."""

    SETTINGS = (
        SettingInput("training.batch_size"),
        SettingInput("training.gradient_accumulation_steps"),
        SettingInput("preview.every", "preview_every"),
        SettingInput("training.checkpoint_every"),
        SettingInput("training.keep_checkpoints"),
        SettingInput("training.schedule.name", "schedule"),
        SettingInput("training.schedule.warmup_steps"),
        SettingInput("training.schedule.min_ratio"),
        SettingInput("training.sigma.density", "sigma_density"),
        SettingInput("training.sigma.shift", "sigma_shift"),
        SettingInput("training.sigma.mean", "sigma_mean"),
        SettingInput("training.sigma.std", "sigma_std"),
        SettingInput("training.sigma.min", "sigma_min"),
        SettingInput("training.sigma.max", "sigma_max"),
        SettingInput("training.guidance"),
        SettingInput("training.max_grad_norm"),
        SettingInput("training.optimizer.name", "optimizer"),
        SettingInput("training.optimizer.beta1", by_optimizer=True),
        SettingInput("training.optimizer.beta2", step=0.001, by_optimizer=True),
        SettingInput("training.optimizer.eps", step=1e-9, by_optimizer=True),
        SettingInput("training.optimizer.weight_decay", by_optimizer=True),
        SettingInput("training.optimizer.lora_plus_ratio", step=1.0),
        SettingInput("training.optimizer.rate_pattern"),
        SettingInput("memory.gradient_checkpointing"),
        SettingInput("memory.threads"),
        SettingInput("output.dtype"),
        SettingInput("output.metadata"),
        SettingInput("training.sigma.mode_scale", "sigma_mode_scale", optional=True),
        SettingInput("memory.blocks_to_swap", optional=True),
        SettingInput("memory.swap_slots", optional=True),
        SettingInput("memory.master", "swap_master", optional=True),
        SettingInput("memory.base_format", optional=True),
        SettingInput("memory.compute", optional=True),
        SettingInput("memory.blocks_to_checkpoint", optional=True),
        SettingInput("memory.checkpoint_inputs", optional=True),
        SettingInput("memory.plan", "memory_plan", optional=True),
        SettingInput("memory.compile", optional=True),
        SettingInput("training.noises_per_latent", optional=True),
        SettingInput("training.max_weight_norm", optional=True),
        SettingInput("training.checkpoint_minutes", step=1.0, optional=True),
        SettingInput("training.keep_every", optional=True),
        SettingInput("training.early_stop", optional=True),
        SettingInput("training.schedule.warmup_share", optional=True),
        SettingInput("training.schedule.cycles", "schedule_cycles", optional=True),
        SettingInput("training.schedule.power", "schedule_power", optional=True),
        SettingInput("training.schedule.decay_share", "schedule_decay_share", optional=True),
        SettingInput("training.sigma.alpha", "sigma_alpha", optional=True),
        SettingInput("training.sigma.beta", "sigma_beta", optional=True),
        SettingInput("training.sigma.stratified", "sigma_stratified", optional=True),
        SettingInput("training.loss.kind", "loss", advanced=True, optional=True),
        SettingInput("training.loss.huber_delta", optional=True),
        SettingInput("training.loss.huber_schedule", optional=True),
        SettingInput("training.loss.weighting", "loss_weighting", optional=True),
        SettingInput("training.loss.snr_gamma", optional=True),
        SettingInput("training.loss.differential_guidance", optional=True),
        SettingInput("training.loss.noise_offset", optional=True),
        SettingInput("training.ema.decay", "ema_decay", advanced=True, step=0.001, optional=True),
        SettingInput("training.ema.previews", "ema_previews", optional=True),
        SettingInput("training.ema.export", "ema_export", optional=True),
        SettingInput("training.ema.post_hoc", "ema_post_hoc", optional=True),
        SettingInput("training.recovery.skips", "recovery_skips", optional=True),
        SettingInput("training.recovery.returns", "recovery_returns", optional=True),
        SettingInput("training.recovery.rate_factor", "recovery_rate_factor", optional=True),
        SettingInput("training.recovery.smaller", "recovery_smaller", optional=True),
        SettingInput("training.optimizer.decay_pattern", optional=True),
        SettingInput("training.optimizer.magnitude_ratio", optional=True),
        SettingInput("metrics.trackers", optional=True),
        SettingInput("metrics.sigma_bands", optional=True),
        SettingInput("metrics.norms_every", optional=True),
        SettingInput(
            "training.text_encoder.learning_rate",
            "text_encoder_learning_rate",
            step=1e-6,
            optional=True,
        ),
        SettingInput("training.text_encoder.rank", "text_encoder_rank", optional=True),
        SettingInput("training.loss.sound", "loss_sound", optional=True),
        SettingInput("training.routing.share", "routing_share", step=0.05, optional=True),
        SettingInput("training.routing.first", "routing_first", optional=True),
        SettingInput("training.routing.last", "routing_last", optional=True),
    )

    @classmethod
    def define_schema(cls) -> io.Schema:
        return io.Schema(
            node_id="AdapterTrainerSettings",
            display_name="Training Settings",
            category="Adapter Trainer",
            description="Batch, schedule, noise levels, optimizer, memory, previews, checkpoints. "
            "Train Adapter works without this node.",
            search_aliases=[
                "optimizer",
                "batch size",
                "scheduler",
                "timesteps",
                "checkpoint",
                "low vram",
                "block swap",
            ],
            inputs=[each.input() for each in cls.SETTINGS],
            outputs=[sockets.Settings.Output(display_name="settings")],
        )

    @classmethod
    def validate_inputs(cls, batch_size: int = 1) -> bool | str:
        """Refuse settings that cannot be when the graph is queued."""
        return input_checks.refusal(cls, input_checks.settings_check(cls.SETTINGS))

    @classmethod
    def execute(cls, **inputs: Any) -> io.NodeOutput:
        from ..services.socket_values import SettingsChoice

        input_checks.settings_check(cls.SETTINGS)(inputs)
        return io.NodeOutput(SettingsChoice(section_values(cls.SETTINGS, inputs)))
