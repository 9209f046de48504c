"""Which settings of length, checkpoints, average, recovery, slider and text encoder contradict."""

from __future__ import annotations

from collections.abc import Iterator

from .adapter import DIFFERENCES, ROTATIONS
from .dataset_folders import dataset_folders
from .run import RunConfig

_AVERAGES_ITSELF = "_schedule_free"


def training_contradictions(config: RunConfig) -> Iterator[tuple[str, str, str]]:
    """What was found, what was expected, and what to do, for each of them."""
    ema = config.training.ema
    if not ema.decay and (ema.previews, ema.export) != ("average", "average"):
        yield (
            "training.ema has settings and its decay is 0, which is off",
            "previews and export only with an average",
            "Set training.ema.decay, such as 0.99, or leave the section out.",
        )
    yield from _average_contradictions(config)
    yield from _limit_contradictions(config)
    yield from _checkpoints(config)
    if config.training.early_stop and not _holds_out(config):
        yield (
            f"training.early_stop is {config.training.early_stop} and nothing is held out",
            "held-out images, whose loss says when to end",
            "Set dataset.validation.share, such as 0.1, or give a folder of dataset.folders the "
            "role validation; or leave training.early_stop out.",
        )


def _average_contradictions(config: RunConfig) -> Iterator[tuple[str, str, str]]:
    ema, optimizer = config.training.ema, config.training.optimizer.name
    if not optimizer.endswith(_AVERAGES_ITSELF):
        return
    for name, value in (("decay", ema.decay), ("post_hoc", ema.post_hoc)):
        if value:
            yield (
                f"training.ema.{name} is {value} and training.optimizer.name is {optimizer}",
                "one of them: this optimizer averages the weights by itself, and an average of "
                "what it steps from is that of other weights",
                f"Leave training.ema.{name} out, or set training.optimizer.name to adamw.",
            )


def _limit_contradictions(config: RunConfig) -> Iterator[tuple[str, str, str]]:
    limit, adapter = config.training.max_weight_norm, config.adapter
    if not limit:
        return
    if adapter.kind in ROTATIONS:
        yield (
            f"training.max_weight_norm is {limit} and adapter.kind is {adapter.kind}",
            "a kind that adds a difference: a rotation leaves the weight as long as it is",
            "Leave training.max_weight_norm out, or choose another adapter.kind.",
        )
    if adapter.init in DIFFERENCES:
        yield (
            f"training.max_weight_norm is {limit} and adapter.init is {adapter.init}",
            "an init whose factors are the adapter's own: these are differences from a part of "
            "the weight, and what they add is not scaled when they are",
            "Leave training.max_weight_norm out, or set adapter.init to default.",
        )


def _checkpoints(config: RunConfig) -> Iterator[tuple[str, str, str]]:
    every, kept = config.training.checkpoint_every, config.training.keep_every
    if kept and (not every or kept % every):
        yield (
            f"training.keep_every is {kept} and training.checkpoint_every is {every}",
            "keep_every as a multiple of checkpoint_every: only checkpoints that are written can "
            "be kept",
            f"Set training.keep_every to {(kept // every or 1) * every if every else 0}, or change "
            "training.checkpoint_every.",
        )


def _holds_out(config: RunConfig) -> bool:
    folders = dataset_folders(config.dataset)
    return config.dataset.validation.share > 0 or any(e.role == "validation" for e in folders)
