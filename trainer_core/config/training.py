"""Settings of the training loop: length, schedule, checkpoints, average, faults, text encoder."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Literal

from .adapter import ROTATIONS
from .loss import LossSection, SigmaSection
from .optimizer import AVERAGES_ITSELF, FINDS_ITS_RATE, LEAST_FACTOR, ONE_RATE, OptimizerSection
from .section import Other, Problem, Section, section, setting

_AVERAGE = Other("decay", such_as=0.99)
_AVERAGES = Other(
    "training.optimizer.name",
    *AVERAGES_ITSELF,
    such_as="adamw",
    because="this optimizer averages the weights by itself, and an average of what it steps from "
    "is that of other weights",
)

_WITH_TEXT_ENCODER = ("comfyui", "kohya", "diffusers")
"""Layouts that have names for a text encoder's layers."""


class ScheduleSection(Section):
    """How the learning rate changes over the run."""

    name: Literal[
        "constant",
        "linear",
        "cosine",
        "cosine_restarts",
        "polynomial",
        "warmup_stable_decay",
        "rex",
        "one_cycle",
    ] = setting(
        "constant",
        "Leave it on constant while you do not know how long to train; take cosine to let a run "
        "of known length end gently. All but constant end at min_ratio: straight, in a curve, in "
        "several curves, by 'power', or only in the last part of the run.",
        not_with=Other(
            "training.optimizer.name",
            *AVERAGES_ITSELF,
            because="this optimizer averages the weights in place of a rate that falls",
        ),
    )
    warmup_steps: int = setting(
        0,
        "Raise it when the first steps do harm, such as at a high learning rate; leave it at 0 "
        "otherwise. Steps of linear rise of the learning rate from 0 at the start.",
        ge=0,
    )
    warmup_share: float = setting(
        0.0,
        "Leave it at 0, or set it instead of warmup_steps. Share of the run in which the learning "
        "rate rises.",
        advanced=True,
        ge=0.0,
        le=0.9,
        not_with=Other("warmup_steps", because="both say how long the learning rate rises"),
    )
    min_ratio: float = setting(
        0.0,
        "Leave it at 0; raise it to let the end of a run still learn. Last learning rate over the "
        "highest; means nothing with constant.",
        advanced=True,
        ge=0.0,
        le=1.0,
        not_with=Other("name", "constant", such_as="cosine"),
    )
    cycles: int = setting(
        3,
        "Leave it unless a recipe names another value. Only for cosine_restarts: how often the "
        "learning rate falls from its highest.",
        advanced=True,
        ge=1,
        le=1000,
        only_with=Other("name", "cosine_restarts"),
    )
    power: float = setting(
        2.0,
        "Leave it unless a recipe names another value. Only for polynomial: 1 is linear, more "
        "falls faster at first.",
        advanced=True,
        gt=0.0,
        le=10.0,
        only_with=Other("name", "polynomial"),
    )
    decay_share: float = setting(
        0.2,
        "Leave it unless a recipe names another value. Only for warmup_stable_decay: share of the "
        "run, at its end, in which the learning rate falls.",
        advanced=True,
        gt=0.0,
        le=1.0,
        only_with=Other("name", "warmup_stable_decay"),
    )


class EmaSection(Section):
    """An exponential moving average of the adapter's weights, beside those that are trained."""

    decay: float = setting(
        0.0,
        "Leave it at 0 (off); take 0.99 when previews change a lot from step to step. How much of "
        "the average each step keeps; the first steps keep less. Needs the adapter's size in "
        "memory once more.",
        ge=0.0,
        lt=1.0,
        not_with=_AVERAGES,
        resumed="course",
    )
    previews: Literal["average", "last"] = setting(
        "average",
        "Leave it on average. What previews and the loss on held-out images are made with: the "
        "'average', or the 'last' weights.",
        advanced=True,
        only_with=_AVERAGE,
    )
    export: Literal["average", "last", "both"] = setting(
        "average",
        "Leave it on average; take both to compare. What the exported adapter is: the 'average', "
        "the 'last' weights, or 'both', the last ones in a second file NAME_last.",
        advanced=True,
        only_with=_AVERAGE,
    )
    post_hoc: bool = setting(
        False,
        "Leave it off; switch it on to choose the average's length after the run, with the verb "
        "ema. Keeps two more averages in each checkpoint, from which others can be made.",
        advanced=True,
        not_with=_AVERAGES,
    )


class RecoverySection(Section):
    """How often a run goes on by itself after numbers that are not finite."""

    skips: int = setting(
        3,
        "Leave it. How many steps in a row whose loss or gradient is not finite are left out and "
        "counted, before the run goes back to its last checkpoint. 0: none.",
        advanced=True,
        ge=0,
        le=1000,
    )
    returns: int = setting(
        1,
        "Leave it; take 0 to stop at once. How often the run goes back to its last checkpoint and "
        "on with a lower learning rate, before it stops.",
        advanced=True,
        ge=0,
        le=100,
    )
    rate_factor: float = setting(
        0.5,
        "Leave it. What the learning rate is multiplied by each time the run goes back to its "
        "last checkpoint.",
        advanced=True,
        gt=0.0,
        le=1.0,
    )
    smaller: bool = setting(
        True,
        "Leave it on. When memory is full in a step, the run does what costs least time: more "
        "blocks compute their activations again or are swapped, or the samples of a batch go "
        "through the base in parts. Each change is reported. Off: the run saves and stops.",
        advanced=True,
    )


_ROUTES = Other("share", 1.0, such_as=0.5, because="every block computes every token")


class RoutingSection(Section):
    """Blocks in the middle that compute a random part of an image's tokens."""

    share: float = setting(
        1.0,
        "Leave it at 1; try 0.5 where large images take too long. Part of an image's tokens that "
        "the blocks in the middle compute, drawn anew in each step; others pass by. At 1024 pixels "
        "0.5 about halves a step's products. On a small base the loss of all tokens got worse.",
        advanced=True,
        ge=0.05,
        le=1.0,
        not_with=(
            Other(
                "dataset.slider.positive",
                because="what a slider is trained on comes from a base that computes every token",
            ),
            Other(
                "dataset.preservation.share",
                because="the base is held to what it predicts when it computes every token",
            ),
        ),
    )
    first: int = setting(
        2,
        "Leave it. How many of the first blocks compute every token.",
        advanced=True,
        ge=0,
        le=1000,
        not_with=_ROUTES,
    )
    last: int = setting(
        2,
        "Leave it. How many of the last blocks compute every token.",
        advanced=True,
        ge=0,
        le=1000,
        not_with=_ROUTES,
    )


class TextEncoderSection(Section):
    """Training of CLIP-L, of bases that have it (of SDXL CLIP-G, too); it computes in each step."""

    train: bool = setting(
        False,
        "Leave it off; it seldom helps. Trains an adapter of CLIP-L as well, of bases that read "
        "it, and of SDXL's CLIP-G. In ComfyUI use Apply Adapter, or Load LoRA with the file, which "
        "have a CLIP input: a loader for the model alone leaves this part out.",
        advanced=True,
        not_with=(
            Other(
                "training.optimizer.name",
                *ONE_RATE,
                such_as="prodigy_schedule_free",
                because="this optimizer needs one learning rate for all factors",
            ),
            Other(
                "adapter.dora_axis",
                "output",
                because="no checkpoint layout holds it with a text encoder",
            ),
            Other(
                "dataset.slider.positive",
                because="a slider needs prompts that stay as they are",
            ),
        ),
    )
    learning_rate: float | None = setting(
        None,
        "Leave it unset, a tenth of the optimizer's learning rate. Highest learning rate of the "
        "text encoder's adapter.",
        advanced=True,
        gt=0.0,
        le=10.0,
        only_with=Other("train"),
        resumed="course",
    )
    rank: int = setting(
        8,
        "Leave it; the text encoder is small. Rank of its adapter.",
        advanced=True,
        ge=1,
        le=4096,
        only_with=Other("train"),
    )

    def problems(self, optimizer: str, layouts: Sequence[str]) -> Iterator[Problem]:
        """What contradicts the optimizer or ``output.layouts``, besides the fields' conditions."""
        if not self.train:
            return
        rate = self.learning_rate
        if optimizer in FINDS_ITS_RATE and rate is not None and rate < LEAST_FACTOR:
            yield Problem(
                f"training.text_encoder.learning_rate is {rate} and training.optimizer.name is "
                f"{optimizer}",
                f"about 0.1: {optimizer} finds the learning rate itself, and multiplies it by this",
                "Leave learning_rate out.",
            )
        for layout in layouts:
            if layout not in _WITH_TEXT_ENCODER:
                yield Problem(
                    f"training.text_encoder.train is true and output.layouts has {layout}",
                    f"layouts that hold a text encoder too: {', '.join(_WITH_TEXT_ENCODER)}",
                    f"Take {layout} out of output.layouts, or leave train out.",
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
        resumed="around",
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
        resumed="course",
    )
    precision: Literal["auto", "bf16", "fp32"] = setting(
        "auto",
        "Leave it on auto: bf16 on a GPU that has it, fp32 on a CPU. Take fp32 to see whether "
        "rounding does harm; it is slower and needs more memory. Precision of the base and of all "
        "computing; the adapter's weights are always fp32.",
        advanced=True,
        resumed="course",
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
        resumed="around",
    )
    keep_checkpoints: int = setting(
        3,
        "Raise it to go back further, or to compare more states; each takes space on disk. How "
        "many checkpoints stay on disk; the oldest go first, never the newest, the best on "
        "held-out images, or the one that the run was told to go on from.",
        advanced=True,
        ge=1,
        le=10000,
        resumed="around",
    )
    checkpoint_minutes: float = setting(
        0.0,
        "Leave it at 0; take 30 for a run of many hours. Minutes between checkpoints, besides "
        "those of checkpoint_every; 0: none.",
        advanced=True,
        ge=0.0,
        le=10000.0,
        resumed="around",
    )
    keep_every: int = setting(
        0,
        "Leave it at 0; set it to compare states of the whole run later. Checkpoints whose step "
        "is a multiple of it stay on disk for good; a multiple of checkpoint_every. 0: none.",
        advanced=True,
        ge=0,
        resumed="around",
    )
    early_stop: int = setting(
        0,
        "Leave it at 0; take 5 to end a run that only learns its images by heart. How often in a "
        "row the loss on held-out images may fail to fall below its lowest before the run ends "
        "with its adapter; the best checkpoint stays beside it. 0: never.",
        advanced=True,
        ge=0,
        le=10000,
        resumed="around",
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
        not_with=(
            Other(
                "training.optimizer.name",
                *AVERAGES_ITSELF,
                such_as="adamw",
                because="this optimizer averages the weights, and the limit would not hold for it",
            ),
            Other(
                "adapter.kind", *ROTATIONS, because="a rotation leaves the weight as long as it is"
            ),
            Other(
                "adapter.init",
                "pissa",
                "olora",
                such_as="default",
                because="their factors are differences, which cannot be scaled down",
            ),
        ),
        resumed="course",
    )
    optimizer: OptimizerSection = section(
        OptimizerSection, "How gradients become updates.", resumed="course"
    )
    schedule: ScheduleSection = section(
        ScheduleSection, "How the learning rate changes.", resumed="course"
    )
    sigma: SigmaSection = section(SigmaSection, "Which noise levels are trained.")
    loss: LossSection = section(
        LossSection, "How an error is measured and counted.", resumed="course"
    )
    routing: RoutingSection = section(
        RoutingSection, "Which tokens of an image are computed.", resumed="course"
    )
    ema: EmaSection = section(EmaSection, "An average of the adapter's weights.", resumed="around")
    recovery: RecoverySection = section(
        RecoverySection, "What happens when something goes wrong.", resumed="around"
    )
    text_encoder: TextEncoderSection = section(
        TextEncoderSection, "A text encoder that is trained as well."
    )

    def problems(self, layouts: Sequence[str], *, holds_out: bool) -> Iterator[Problem]:
        """What contradicts itself, besides the conditions of the fields.

        Layouts are those of ``output``; the dataset may hold images out.
        """
        yield from self.sigma.problems()
        yield from self.loss.problems()
        yield from self.optimizer.problems()
        yield from self.text_encoder.problems(self.optimizer.name, layouts)
        every, kept = self.checkpoint_every, self.keep_every
        if kept and (not every or kept % every):
            yield Problem(
                f"training.keep_every is {kept} and training.checkpoint_every is {every}",
                "keep_every as a multiple of checkpoint_every: only checkpoints that are written "
                "can be kept",
                f"Set training.keep_every to {(kept // every or 1) * every if every else 0}, or "
                "change training.checkpoint_every.",
            )
        if self.early_stop and not holds_out:
            yield Problem(
                f"training.early_stop is {self.early_stop} and nothing is held out",
                "held-out images, whose loss says when to end",
                "Set dataset.validation.share, such as 0.1, or give a folder of dataset.folders "
                "the role validation; or leave training.early_stop out.",
            )
