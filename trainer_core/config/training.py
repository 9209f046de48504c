"""Settings of the training loop: length, batch, checkpoints, and what becomes of faults."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from .ema import EmaSection
from .loss import LossSection
from .optimizer import OptimizerSection
from .recovery import RecoverySection
from .schedule import ScheduleSection
from .section import Section, setting
from .sigma import SigmaSection
from .text_encoder import TextEncoderSection


class TrainingSection(Section):
    """Length and shape of the run."""

    steps: int | None = setting(
        None,
        "Leave it unset for the first try; raise it while previews still get better, lower it "
        "when they were better before the end. Optimizer steps. Unset: chosen from the number of "
        "images, so that a small set is not trained too long.",
        ge=1,
        le=10_000_000,
    )
    batch_size: int = setting(
        1,
        "Leave it at 1; raise it for steadier learning when VRAM is left. Samples per micro-batch.",
        ge=1,
        le=4096,
    )
    gradient_accumulation_steps: int = setting(
        1,
        "Leave it at 1; raise it for steadier learning when VRAM has no room for a larger batch, "
        "and each step may take longer. Micro-batches per optimizer step, over all processes "
        "together: the same run file trains the same on any number of processes.",
        advanced=True,
        ge=1,
        le=4096,
    )
    max_grad_norm: float = setting(
        1.0,
        "Leave it; lower it when the loss jumps up again and again. Gradients are scaled down to "
        "this norm; 0 leaves them as they are.",
        advanced=True,
        ge=0.0,
    )
    precision: Literal["auto", "bf16", "fp32"] = setting(
        "auto",
        "Leave it on auto: bf16 on a GPU that has it, fp32 on a CPU. Take fp32 to see whether "
        "rounding does harm; it is slower and needs more memory. Precision of the base and of all "
        "computing; the adapter's weights are always fp32.",
        advanced=True,
    )
    guidance: float = setting(
        1.0,
        "Leave it unless a recipe for your base names another value. Guidance value that "
        "guidance-distilled bases are conditioned on while they train.",
        advanced=True,
        ge=0.0,
        le=100.0,
    )
    checkpoint_every: int = setting(
        250,
        "Lower it to lose less when the computer stops, or to have more states to choose from; "
        "each takes space on disk. Steps between checkpoints; 0 saves only the end.",
        ge=0,
    )
    keep_checkpoints: int = setting(
        3,
        "Raise it to go back further, or to compare more states; each takes space on disk. How "
        "many checkpoints stay on disk; the oldest go first, never the newest, the best on "
        "held-out images, or the one that the run was told to go on from.",
        advanced=True,
        ge=1,
        le=10000,
    )
    checkpoint_minutes: float = setting(
        0.0,
        "Leave it at 0; take 30 for a run of many hours. Minutes between checkpoints, besides "
        "those of checkpoint_every; 0: none.",
        advanced=True,
        ge=0.0,
        le=10000.0,
    )
    keep_every: int = setting(
        0,
        "Leave it at 0; set it to compare states of the whole run later. Checkpoints whose step "
        "is a multiple of it stay on disk for good; a multiple of checkpoint_every. 0: none.",
        advanced=True,
        ge=0,
    )
    early_stop: int = setting(
        0,
        "Leave it at 0; take 5 to end a run that only learns its images by heart. How often in a "
        "row the loss on held-out images may fail to fall below its lowest before the run ends "
        "with its adapter; the best checkpoint stays beside it. 0: never.",
        advanced=True,
        ge=0,
        le=10000,
    )
    noises_per_latent: int = setting(
        1,
        "Leave it at 1; raise it where reading images or control images takes long. How often in "
        "a row each batch is trained in its step, each time with another noise and noise level: a "
        "step takes so many times as long, and no more memory.",
        advanced=True,
        ge=1,
        le=64,
    )
    max_weight_norm: float = setting(
        0.0,
        "Leave it at 0 (off); lower it to keep a long run from getting too strong. The largest "
        "norm of a layer's weight difference over that of the base's weight; larger ones are "
        "scaled down after each step.",
        advanced=True,
        ge=0.0,
        le=100.0,
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
    loss: LossSection = Field(
        default_factory=LossSection, description="How an error is measured and counted."
    )
    ema: EmaSection = Field(
        default_factory=EmaSection, description="An average of the adapter's weights."
    )
    recovery: RecoverySection = Field(
        default_factory=RecoverySection, description="What happens when something goes wrong."
    )
    text_encoder: TextEncoderSection = Field(
        default_factory=TextEncoderSection, description="A text encoder that is trained as well."
    )
