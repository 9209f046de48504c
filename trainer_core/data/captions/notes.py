"""What caption rules did not do, in words: nobody looks through the texts of 100 000 images."""

from __future__ import annotations

from collections.abc import Sequence

from ...config import DatasetSection
from ...config.dataset import dataset_folders
from ...printable import listed
from ...types import Sample
from .rules import PLACEHOLDERS

_NAMED = 3
_FEWEST = 2  # captions that have something in common


def caption_notes(samples: Sequence[Sample], dataset: DatasetSection) -> tuple[str, ...]:
    """Say where caption rules have no effect, and where not all texts are encoded.

    Args:
        dataset: The run file's section; each folder may have rules of its own.

    Returns:
        At most one note for all, one for each folder, and two for each set of rules.
    """
    left = [each.name for each in samples if any(map(each.caption.count, PLACEHOLDERS))]
    notes = _named(
        left,
        f"{len(left)} captions have {PLACEHOLDERS[0]} and there is no trigger word for it, so that "
        "it is trained as it stands; set dataset.trigger_word",
    )
    folders = dataset_folders(dataset)
    for number, folder in enumerate(folders):
        texts = [each.caption for each in samples if each.folder == number]
        notes += filter(None, [second_word(texts, folder.settings.trigger_word)])
    groups: dict[tuple[object, ...], list[Sample]] = {}
    for each in samples:
        rules = folders[each.folder].settings.captions
        same = (rules.shuffle, rules.keep, rules.separator, rules.most)
        groups.setdefault(same, []).append(each)
    for own in groups.values():
        rules = folders[own[0].folder].settings.captions
        if rules.shuffle:
            still = [each.name for each in own if len(each.captions) == 1 and each.caption]
            note = f"of {len(still)} captions dataset.captions.shuffle moves no tag"
            notes += _named(
                still,
                f"{note}: they have no two different tags between {rules.separator!r} behind the "
                f"first {rules.keep} (dataset.captions.keep)",
            )
        full = [each.name for each in own if len(each.captions) == rules.most > 1]
        if rules.shuffle != rules.most:
            notes += _named(
                full,
                f"{len(full)} images have {rules.most} texts, the most that dataset.captions.most "
                "allows; of more than that, so many were drawn",
            )
    return tuple(notes)


def second_word(captions: Sequence[str], trigger_word: str) -> str:
    """Say that all captions of a folder begin with what may be an earlier trigger word.

    Args:
        captions: With or without the trigger word.

    Returns:
        Nothing without a trigger word, or where they do not.
    """
    trigger = trigger_word.strip()
    own = (caption.removeprefix(trigger).lstrip(", ") for caption in captions)
    heads = {caption.partition(",")[0].strip() for caption in own}
    word = heads.pop() if len(heads) == 1 and trigger else ""
    # A tag such as 1girl, or the beginning of a sentence, is none.
    alone = word[:1].isalpha() and " " not in word and word.lower() != trigger.lower()
    if len(captions) < _FEWEST or not alone:
        return ""
    return (
        f"every caption begins with {word!r}, and the trigger word is {trigger!r}: both are "
        f"trained. If {word!r} was the trigger word before, replace it in the captions"
    )


def _named(names: Sequence[str], note: str) -> list[str]:
    return [f"{note}: {listed(names, _NAMED)}"] if names else []
