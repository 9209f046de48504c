"""Settings of the training loop: length, batch, optimizer, schedule, sigma."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from .section import Section, setting


class OptimizerSection(Section):
    """How gradients become updates."""

    name: Literal["adamw", "adamw8bit"] = setting(
        "adamw",
        "Take adamw8bit when VRAM is short, else leave it. 'adamw', or 'adamw8bit', which keeps "
        "its two moments in 8 bits: 10 bytes of memory for a trained number instead of 16.",
    )
    learning_rate: float = setting(
        1e-4,
        "Lower it when previews fall apart; raise it when they hardly change. 1e-4 suits every "
        "kind but oft, and 1e-2 the embedded base. Highest learning rate of the run: how far each "
        "step goes.",
        gt=0.0,
        le=10.0,
    )
    beta1: float = setting(
        0.9,
        "Leave it unless a recipe names another value. Decay of the mean gradient.",
        advanced=True,
        ge=0.0,
        lt=1.0,
    )
    beta2: float = setting(
        0.999,
        "Leave it unless a recipe names another value. Decay of the mean squared gradient.",
        advanced=True,
        ge=0.0,
        lt=1.0,
    )
    eps: float = setting(
        1e-8,
        "Leave it unless a recipe names another value. Added to the denominator of an update.",
        advanced=True,
        gt=0.0,
        le=1.0,
    )
    weight_decay: float = setting(
        0.01,
        "Leave it; raise it when a long run makes the adapter too strong. Decoupled decay of the "
        "adapter's weights; DoRA's magnitudes do not decay.",
        advanced=True,
        ge=0.0,
        le=1.0,
    )
    lora_plus_ratio: float = setting(
        1.0,
        "Leave it at 1; raise it to let a lora learn faster. The paper takes 16. LoRA+: learning "
        "rate of the upper factor over that of the lower one; kind lora only.",
        advanced=True,
        ge=1.0,
        le=1000.0,
    )
    rate_pattern: dict[str, float] = setting(
        {},
        "Leave it empty unless some layers should learn faster or slower than others. Another "
        "learning rate for layers that match: regular expression to a multiple of learning_rate.",
        advanced=True,
    )


class ScheduleSection(Section):
    """How the learning rate changes over the run."""

    name: Literal["constant", "cosine"] = setting(
        "constant",
        "Leave it on constant while you do not know how long to train; take cosine to let a run "
        "of known length end gently. 'constant', or 'cosine' down to min_ratio at the last step.",
    )
    warmup_steps: int = setting(
        0,
        "Raise it when the first steps do harm, such as at a high learning rate; leave it at 0 "
        "otherwise. Steps of linear rise of the learning rate from 0 at the start.",
        ge=0,
    )
    min_ratio: float = setting(
        0.0,
        "Leave it at 0; raise it to let the end of a cosine run still learn. Last learning rate "
        "over the highest; means nothing with constant.",
        advanced=True,
        ge=0.0,
        le=1.0,
    )


class SigmaSection(Section):
    """Which noise levels are trained; 1 is pure noise."""

    density: Literal["logit_normal", "uniform", "shifted", "mode", "content", "style"] = setting(
        "logit_normal",
        "Take 'style' when the look matters most, 'content' for shapes and composition, else "
        "leave it. Which noise is trained most. 'logit_normal': the middle. 'uniform': all alike. "
        "'shifted': moved towards noise by 'shift'. 'mode': the SD3 paper's, by 'mode_scale'. "
        "'content': strong. 'style': weak.",
    )
    mean: float = setting(
        0.0,
        "Leave it unless a recipe names another value; higher trains strong noise more. Only for "
        "logit_normal and shifted: mean of the logit.",
        advanced=True,
        ge=-5,
        le=5,
    )
    std: float = setting(
        1.0,
        "Leave it unless a recipe names another value; higher trains weak and strong noise more. "
        "Only for logit_normal and shifted: standard deviation of the logit.",
        advanced=True,
        gt=0,
        le=5,
    )
    shift: float | None = setting(
        None,
        "Leave it unset unless a recipe names one; above 1 trains strong noise more. For all but "
        "logit_normal: sigma' = shift * sigma / (1 + (shift - 1) * sigma). Unset: for shifted the "
        "shift that the base's scheduler uses at the image's size, else none.",
        advanced=True,
        gt=0.0,
        le=100.0,
    )
    mode_scale: float = setting(
        1.29,
        "Leave it unless a recipe names another value. Only for mode: above 0 more middle noise, "
        "below 0 more of both ends.",
        advanced=True,
        ge=-1.0,
        le=1.75,
    )
    min: float = setting(
        0.0,
        "Leave it at 0; raise it to leave out weak noise, and with it the finest detail. Smallest "
        "sigma that is trained.",
        advanced=True,
        ge=0.0,
        lt=1.0,
    )
    max: float = setting(
        1.0,
        "Leave it at 1; lower it to leave out strong noise, and with it the composition. Largest "
        "sigma that is trained.",
        advanced=True,
        gt=0.0,
        le=1.0,
    )


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
        "many checkpoints stay on disk; the oldest go first, never the newest or the one that the "
        "run was told to go on from.",
        advanced=True,
        ge=1,
        le=10000,
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
