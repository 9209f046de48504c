"""Which settings of the loss contradict each other, or would have no effect."""

from __future__ import annotations

from collections.abc import Iterator

from .loss import LossSection
from .run import RunConfig


def loss_contradictions(config: RunConfig) -> Iterator[tuple[str, str, str]]:
    """What was found, what was expected, and what to do, for each of them."""
    loss = config.training.loss
    yield from _huber(loss)
    if loss.weighting != "min_snr" and loss.snr_gamma != LossSection().snr_gamma:
        yield (
            f"training.loss.snr_gamma is set and training.loss.weighting is {loss.weighting}",
            "snr_gamma only with weighting min_snr",
            "Leave training.loss.snr_gamma out, or set training.loss.weighting to min_snr.",
        )
    if loss.weighting == "learned" and loss.kind != "mse":
        yield (
            f"training.loss.weighting is learned and training.loss.kind is {loss.kind}",
            "kind mse: the learned weights even out squared errors",
            "Set training.loss.kind to mse, or choose another training.loss.weighting.",
        )
    if loss.differential_guidance != 1.0 and loss.kind == "mae":
        yield (
            f"training.loss.differential_guidance is {loss.differential_guidance} and "
            "training.loss.kind is mae",
            "a loss whose gradient depends on how large an error is; that of mae does not",
            "Leave training.loss.differential_guidance out, or set training.loss.kind to mse.",
        )


def _huber(loss: LossSection) -> Iterator[tuple[str, str, str]]:
    if loss.kind != "huber":
        usual = LossSection()
        for name in ("huber_delta", "huber_schedule"):
            if getattr(loss, name) != getattr(usual, name):
                yield (
                    f"training.loss.{name} is set and training.loss.kind is {loss.kind}",
                    f"{name} only with kind huber",
                    f"Leave training.loss.{name} out, or set training.loss.kind to huber.",
                )
    elif loss.huber_schedule == "sigma" and loss.huber_delta >= 1.0:
        yield (
            f"training.loss.huber_schedule is sigma and training.loss.huber_delta is "
            f"{loss.huber_delta}",
            "huber_delta below 1: the schedule falls from 1 at the image to it at pure noise",
            "Lower training.loss.huber_delta, or set training.loss.huber_schedule to constant.",
        )
