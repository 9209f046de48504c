"""Which settings of length, checkpoints, average and recovery contradict."""

from __future__ import annotations

from collections.abc import Iterator

from .adapter import DIFFERENCES, ROTATIONS
from .dataset import DatasetSection
from .dataset_folders import DatasetFolder, dataset_folders
from .optimizer_facts import AVERAGES_ITSELF
from .preservation import PreservationSection
from .run import RunConfig


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
    yield from _preservation(config.dataset)
    if config.training.early_stop and not _holds_out(config):
        yield (
            f"training.early_stop is {config.training.early_stop} and nothing is held out",
            "held-out images, whose loss says when to end",
            "Set dataset.validation.share, such as 0.1, or give a folder of dataset.folders the "
            "role validation; or leave training.early_stop out.",
        )


def _average_contradictions(config: RunConfig) -> Iterator[tuple[str, str, str]]:
    ema, optimizer = config.training.ema, config.training.optimizer.name
    if optimizer not in AVERAGES_ITSELF:
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
    optimizer = config.training.optimizer.name
    if optimizer in AVERAGES_ITSELF:
        yield (
            f"training.max_weight_norm is {limit} and training.optimizer.name is {optimizer}",
            "one of them: this optimizer averages the weights by itself, and the limit would hold "
            "for what it steps from alone",
            "Leave training.max_weight_norm out, or set training.optimizer.name to adamw.",
        )
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


def _preservation(dataset: DatasetSection) -> Iterator[tuple[str, str, str]]:
    kept, place = dataset.preservation, "dataset.preservation"
    if not kept.share:
        return  # that it has settings and is off is told elsewhere
    found = f"{place}.kind is {kept.kind}"
    needs_word, word = kept.kind in {"class", "output"}, kept.class_word.strip()
    if needs_word and not word:
        yield (
            f"{found} and {place}.class_word is empty",
            "the ordinary word for what is trained",
            f"Set {place}.class_word, such as 'woman', or {place}.kind to trajectory.",
        )
    if kept.class_word and not needs_word:
        yield (
            f"{place}.class_word is set and {found}",
            "a class word only with kind class or output",
            f"Leave {place}.class_word out, or set {place}.kind to class or output.",
        )
    unused = {"trajectory": (), "class": ("prompts",)}.get(kept.kind, ("prompts", "count", "steps"))
    for name in unused:
        if getattr(kept, name) != getattr(PreservationSection(), name):
            yield (
                f"{place}.{name} is set and {found}",
                f"{place}.{name} only where the base makes images"
                + (" of prompts that you give" if name == "prompts" else ""),
                f"Leave {place}.{name} out, or set {place}.kind to trajectory.",
            )
    if kept.kind == "output" and word:
        yield from _trigger_words(dataset, word)
    if kept.kind == "blank":
        yield from _dropped_captions(dataset)


def _trigger_words(dataset: DatasetSection, word: str) -> Iterator[tuple[str, str, str]]:
    own = [each.settings.trigger_word.strip() for each in _trained(dataset)]
    if not any(own):
        yield (
            "dataset.preservation.kind is output and dataset.trigger_word is empty",
            "a trigger word, in the place of which the base is given the class word",
            "Set dataset.trigger_word, or dataset.preservation.kind to blank or class.",
        )
    if word.casefold() in (each.casefold() for each in own):
        yield (
            f"dataset.preservation.class_word and dataset.trigger_word are both {word!r}",
            "a class word that is not what is learned",
            "Change dataset.trigger_word to a word that means nothing yet.",
        )


def _dropped_captions(dataset: DatasetSection) -> Iterator[tuple[str, str, str]]:
    share = max(each.settings.caption_dropout for each in _trained(dataset))
    if share:
        yield (
            f"dataset.preservation.kind is blank and dataset.caption_dropout is {share:g}",
            "one of them: dropped captions teach the empty prompt what blank holds it back from",
            "Set dataset.caption_dropout to 0, or dataset.preservation.kind to trajectory.",
        )


def _trained(dataset: DatasetSection) -> list[DatasetFolder]:
    return [each for each in dataset_folders(dataset) if each.role == "train"]
