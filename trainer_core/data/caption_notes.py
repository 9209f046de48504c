"""What caption rules did not do, in words: nobody looks through the texts of 100 000 images."""

from __future__ import annotations

from collections.abc import Sequence

from ..config import DatasetSection
from ..config.dataset_folders import dataset_folders
from ..types import Sample
from .captions import PLACEHOLDERS

_NAMED = 3


def caption_notes(samples: Sequence[Sample], dataset: DatasetSection) -> tuple[str, ...]:
    """Say where caption rules have no effect, and where not all texts are encoded.

    Args:
        samples: What a scan found.
        dataset: The run file's section; each folder may have rules of its own.

    Returns:
        At most one note for all, and two for each set of rules.
    """
    left = [each.name for each in samples if any(map(each.caption.count, PLACEHOLDERS))]
    notes = _named(
        left,
        f"{len(left)} captions have {PLACEHOLDERS[0]} and there is no trigger word for it, so that "
        "it is trained as it stands; set dataset.trigger_word",
    )
    folders = dataset_folders(dataset)
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


def _named(names: Sequence[str], note: str) -> list[str]:
    if not names:
        return []
    more = f" and {len(names) - _NAMED} more" if len(names) > _NAMED else ""
    return [f"{note}: {', '.join(names[:_NAMED])}{more}"]
