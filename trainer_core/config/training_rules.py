"""Which settings of length, checkpoints, average, recovery, slider and text encoder contradict."""

from __future__ import annotations

from collections.abc import Iterator

from .dataset import DatasetSection
from .dataset_folders import DatasetFolder, dataset_folders
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
    yield from _preservation(config.dataset)


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
