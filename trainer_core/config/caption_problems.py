"""Caption rules that contradict each other, or that would have no effect."""

from __future__ import annotations

from collections.abc import Iterator

from ..filesystem.file_names import FOREIGN_EXTENSIONS, IMAGE_EXTENSIONS
from .captions import CaptionSection
from .dataset import DatasetSection

Contradiction = tuple[str, str, str]


def caption_contradictions(dataset: DatasetSection) -> Iterator[Contradiction]:
    """What contradicts itself in ``dataset.captions``, and in those of its folders."""
    folders = {f"dataset.folders[{n}]": folder for n, folder in enumerate(dataset.folders)}
    for place, section in {"dataset": dataset, **folders}.items():
        extension = section.caption_extension or ""
        if extension.lower() in IMAGE_EXTENSIONS | FOREIGN_EXTENSIONS:
            yield (
                f"{place}.caption_extension is {extension}, which images end in",
                "the extension of text files, such as .txt or .caption",
                f"Leave {place}.caption_extension out for .txt.",
            )
    named = [("dataset.captions", dataset.captions)]
    for number, folder in enumerate(dataset.folders):
        if folder.captions is not None:
            named.append((f"dataset.folders[{number}].captions", folder.captions))
    for place, rules in named:
        yield from _of_rules(place, rules)


def _of_rules(place: str, rules: CaptionSection) -> Iterator[Contradiction]:
    usual = CaptionSection()
    if rules.shuffle == 1:
        yield (
            f"{place}.shuffle is 1, which is the order that is written",
            "0 for tags that stay in place, or the number of orders, at least 2",
            f"Set {place}.shuffle to 4 or so, or leave it out.",
        )
    for name in ("keep", "drop", "separator"):
        value = getattr(rules, name)
        if not rules.shuffle and value != getattr(usual, name):
            yield (
                f"{place}.{name} is {value!r} and {place}.shuffle is 0, so no tag is moved",
                f"{place}.{name} only with tags that are shuffled",
                f"Leave {place}.{name} out, or set {place}.shuffle, such as 4.",
            )
    if rules.shuffle > rules.most:
        yield (
            f"{place}.shuffle is {rules.shuffle} and {place}.most is {rules.most}",
            "no more orders of a caption than texts of an image",
            f"Lower {place}.shuffle to {rules.most}, or raise {place}.most.",
        )
