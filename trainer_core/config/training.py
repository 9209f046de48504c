"""Settings of the training loop: length, batch, optimizer, schedule, sigma."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from .section import Section, setting


class OptimizerSection(Section):
    """How gradients become updates."""

    name: Literal["adamw", "adamw8bit"] = setting(
        "adamw",
        "'adamw', or 'adamw8bit', which keeps its two moments in 8 bits: 10 bytes of memory for a "
        "trained number instead of 16.",
    )
    learning_rate: float = setting(1e-4, "Highest learning rate of the run.", gt=0.0, le=10.0)
    beta1: float = setting(0.9, "Decay of the mean gradient.", advanced=True, ge=0.0, lt=1.0)
    beta2: float = setting(
        0.999, "Decay of the mean squared gradient.", advanced=True, ge=0.0, lt=1.0
    )
    eps: float = setting(1e-8, "Added to the denominator.", advanced=True, gt=0.0, le=1.0)
    weight_decay: float = setting(
        0.01,
        "Decoupled decay of the adapter's weights; DoRA's magnitudes do not decay.",
        advanced=True,
        ge=0.0,
        le=1.0,
    )
    lora_plus_ratio: float = setting(
        1.0,
        "LoRA+: learning rate of the upper factor over that of the lower one; kind lora only. The "
        "paper takes 16.",
        advanced=True,
        ge=1.0,
        le=1000.0,
    )
    rate_pattern: dict[str, float] = setting(
        {},
        "Another learning rate for layers that match: regular expression to a multiple of "
        "learning_rate.",
        advanced=True,
    )


class ScheduleSection(Section):
    """How the learning rate changes over the run."""

    name: Literal["constant", "cosine"] = setting(
        "constant", "'constant', or 'cosine' down to min_ratio at the last step."
    )
    warmup_steps: int = setting(0, "Steps of linear rise from 0 at the start.", ge=0)
    min_ratio: float = setting(
        0.0, "cosine: last learning rate over the highest.", advanced=True, ge=0.0, le=1.0
    )


class SigmaSection(Section):
    """Which noise levels are trained; 1 is pure noise."""

    density: Literal["logit_normal", "uniform", "shifted", "mode", "content", "style"] = setting(
        "logit_normal",
        "'logit_normal': mostly middle noise. 'uniform': all alike. 'shifted': logit_normal moved "
        "towards noise by 'shift'. 'mode': the SD3 paper's, by 'mode_scale'. 'content': mostly "
        "strong noise, where composition is decided. 'style': mostly weak noise.",
    )
    mean: float = setting(
        0.0, "logit_normal, shifted: mean of the logit.", advanced=True, ge=-5, le=5
    )
    std: float = setting(
        1.0, "logit_normal, shifted: standard deviation of the logit.", advanced=True, gt=0, le=5
    )
    shift: float | None = setting(
        None,
        "All but logit_normal: sigma' = shift * sigma / (1 + (shift - 1) * sigma). Unset: for "
        "shifted the shift that the base's scheduler uses at the image's size, else none.",
        advanced=True,
        gt=0.0,
        le=100.0,
    )
    mode_scale: float = setting(
        1.29,
        "mode: above 0 more middle noise, below 0 more of both ends.",
        advanced=True,
        ge=-1.0,
        le=1.75,
    )
    min: float = setting(0.0, "Smallest sigma.", advanced=True, ge=0.0, lt=1.0)
    max: float = setting(1.0, "Largest sigma.", advanced=True, gt=0.0, le=1.0)


class TrainingSection(Section):
    """Length and shape of the run."""

    steps: int | None = setting(
        None,
        "Optimizer steps. Unset: chosen from the number of images, so that a small set is not "
        "trained too long.",
        ge=1,
        le=10_000_000,
    )
    batch_size: int = setting(1, "Samples per micro-batch.", ge=1, le=4096)
    gradient_accumulation_steps: int = setting(
        1,
        "Micro-batches per optimizer step, over all processes together: the same run file trains "
        "the same on any number of processes.",
        advanced=True,
        ge=1,
        le=4096,
    )
    max_grad_norm: float = setting(
        1.0,
        "Gradients are scaled down to this norm; 0 leaves them as they are.",
        advanced=True,
        ge=0.0,
    )
    precision: Literal["auto", "bf16", "fp32"] = setting(
        "auto",
        "Precision of the base and of all computing; the adapter's weights are always fp32. "
        "'auto': bf16 on a GPU that has it, fp32 on a CPU.",
        advanced=True,
    )
    guidance: float = setting(
        1.0,
        "Guidance value that guidance-distilled bases are conditioned on while they train.",
        advanced=True,
        ge=0.0,
        le=100.0,
    )
    checkpoint_every: int = setting(250, "Steps between checkpoints; 0 saves only the end.", ge=0)
    keep_checkpoints: int = setting(
        3, "How many checkpoints stay on disk.", advanced=True, ge=1, le=10000
    )
    optimizer: OptimizerSection = Field(
        default_factory=OptimizerSection, description="How gradients become updates."
    )
    schedule: ScheduleSection = Field(
        default_factory=ScheduleSection, description="How the learning rate changes."
    )
    sigma: SigmaSection = Field(
        default_factory=SigmaSection, description="Which noise levels are trained."
    )
