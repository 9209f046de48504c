"""Encode every image and caption once and keep the result by content.

The name of a cached file is a hash of all that its content depends on: the image's bytes, the
size, the encoders, the caption. So nothing is ever stale, a changed caption costs one text
encoding, and several datasets and processes may share a folder.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import torch

from ...config import CacheSection, RunConfig
from ...errors import DatasetError
from ...printable import listed
from ...types import PlannedSample
from ..buckets import Plan
from ..masks import counts_nothing, may_count_nothing, nothing_counts_error
from ..paused_gc import paused_gc
from ..report.dataset_report import motion_findings
from ..report.report_text import finding_line
from .cache_file import look_into, read_entry
from .cached_dataset import CachedDataset
from .cached_item import PreservedItem
from .encode_missing import Maker, opened_maker
from .encoder_protocols import Encoders
from .entry_keys import EntryKeys, SampleTasks, TextTask
from .file_index import CacheIndex, count_tokens
from .item_columns import ColumnWriter, ItemColumns, hex_keys
from .remove_unused import UseMark


def _ignore(done: int, total: int) -> None:
    """Tell nobody."""


@torch.no_grad()
def build_cache(
    keys: EntryKeys,
    plan: Plan,
    open_encoders: Callable[[], Encoders],
    notify: Callable[[int, int], None] = _ignore,
    preserved_prompts: Sequence[str] = (),
    options: CacheSection | None = None,
) -> CachedDataset:
    """Encode what is missing; gives the whole in the order of the plan.

    Every file is written as soon as it is encoded: an interrupted build goes on where it stopped.

    Args:
        keys: Name the files; their folder is made when something has to be written.
        open_encoders: Loads the encoders; called at most once, and only if something is missing.
        notify: Called with files done and files missing at the start, before anything is encoded,
            and after each file. An exception that it raises stops the build.
        preserved_prompts: What the base is held to, for images of the size that most samples have,
            and with the control images and as many layers as samples of that size.
        options: Number format, batch size, and whether to read every cached file instead of
            believing headers; unset: what the settings are by default.

    Raises:
        DatasetError: When an image cannot be read or does not encode to finite numbers, or when
            no sample is left.
        StorageError: When the cache cannot be written.
    """
    options = options or CacheSection()
    samples = _Samples(keys)
    with paused_gc():
        for planned in plan.samples:
            samples.add(planned)
        keys.hashes.save()
        columns = samples.columns()
    prompts = list(samples.prompts(preserved_prompts))
    texts = [task for _, task in prompts]
    # Before it is looked what is there: from here on nobody removes it.
    own = [columns.keys, hex_keys(task.entry.key for task in texts)]
    mark = UseMark(keys.folder, np.concatenate(own))
    with opened_maker(keys, open_encoders, notify, options) as maker:
        lacking, extra, damaged = _missing(maker.index, columns, texts, options.verify)
        _complete(maker, samples, columns, lacking=lacking, extra=extra, prompts=prompts)
    kept = [item for item, task in prompts if task.entry.key not in maker.missing]
    kept = [item for item in kept if _has_controls(item, maker)]
    columns = samples.leave_out(columns, maker)
    if not len(columns):
        raise DatasetError(
            f"no sample is left ({listed(samples.problems, 5, '; ') or 'the plan is empty'})",
            "at least one image that can be encoded",
            "Fix the images named here.",
        )
    reused = len(columns.keys) + len(extra) - maker.encoded - len(maker.missing)
    problems = [f"{each}, was damaged and is encoded again" for each in damaged]
    problems = [*samples.problems, *problems, *map(finding_line, motion_findings(maker.moving))]
    dataset = CachedDataset(columns, maker.encoded, reused, problems, preserved=kept)
    dataset.damaged, dataset.mark = tuple(damaged), mark
    if any(form.class_texts for form in columns.forms):
        dataset.class_word = keys.settings.preservation.class_word
    return dataset


def _missing(
    index: CacheIndex, columns: ItemColumns, prompts: Sequence[TextTask], verify: bool
) -> tuple[np.ndarray, set[str], list[str]]:
    """Which rows of the keys lack a file, which texts of prompts, and what is damaged.

    Fills the tokens in.
    """
    kinds = sorted({kind for _, kind in columns.places} | {"text"})
    numbers = np.array([kinds.index(kind) for _, kind in columns.places], np.uint8)
    others = {task.entry.key: task for task in prompts}
    known = set() if not others else {e for chunk in columns.chunks() for k in chunk for e in k}
    others = {key: task for key, task in others.items() if key not in known}
    kind_of = numbers[columns.place_of] if len(columns.keys) else np.zeros(0, np.uint8)
    kind_of = np.concatenate([kind_of, np.full(len(others), kinds.index("text"), np.uint8)])
    keys = np.concatenate([columns.keys, hex_keys(others)])
    found = index.look_up(kinds, kind_of, keys, verify=verify)
    count = len(columns.keys)
    columns.tokens[:] = found.tokens[:count]
    lacking = {key for key, whole in zip(others, found.whole[count:], strict=True) if not whole}
    damaged: list[str] = []
    for row in np.nonzero(found.damaged[:count])[0].tolist():
        entry, owners = columns.entry(row), columns.having(np.arange(count) == row)
        damaged.append(f"{entry.kind}/{entry.key}.safetensors, of {columns.name(int(owners[0]))}")
    return ~found.whole[:count], lacking, damaged


def _complete(
    maker: Maker,
    samples: _Samples,
    columns: ItemColumns,
    lacking: np.ndarray,
    extra: set[str],
    prompts: Sequence[tuple[PreservedItem, TextTask]],
) -> None:
    """Make all that is missing, and fill in how many tokens the texts have."""
    missing = {columns.entry(row).key for row in np.nonzero(lacking)[0].tolist()}
    maker.begin(missing | extra)
    touched = columns.having(lacking).tolist()
    if maker.missing:
        # All images before all texts: encoders that do not fit together change places once.
        maker.make(task for each in samples.again(touched) for task in each.images)
        maker.make(task for each in samples.again(touched) for task in each.plain)
    # Weights are not part of what is kept: with one of 0 all masks are read.
    every = may_count_nothing(samples.keys.settings.mask)
    for number in columns.masked(range(len(columns)) if every else touched):
        samples.check_masks(next(samples.again([number])), missing, maker)
    if maker.missing:
        maker.make(_texts(samples.again(touched), maker))
        maker.make(task for item, task in prompts if _has_controls(item, maker))
    for row in np.nonzero(lacking)[0].tolist():
        entry = columns.entry(row)
        known = maker.tokens.get(entry.key)
        # What another process made meanwhile is opened.
        columns.tokens[row] = count_tokens(look_into(entry) or {}) if known is None else known


def _texts(recipes: Iterator[SampleTasks], maker: Maker) -> Iterator[TextTask]:
    """The texts of samples whose images could be encoded."""
    for recipe in recipes:
        if not any(entry.key in maker.failed for entry in recipe.item.entries):
            yield from recipe.texts


def _has_controls(item: PreservedItem, maker: Maker) -> bool:
    return not any(entry.key in maker.missing for entry in item.controls)


@dataclass(slots=True)
class _Samples:
    """The samples of a plan that can be read, in its order."""

    keys: EntryKeys
    planned: list[PlannedSample] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)
    _writer: ColumnWriter = field(default_factory=ColumnWriter)

    def add(self, planned: PlannedSample) -> None:
        """Name what a sample needs; one that cannot be read is left out."""
        try:
            item = self.keys.of(planned).item
        except DatasetError as error:
            self._leave_out(planned.sample.name, error)
            return
        self._writer.add(item)
        self.planned.append(planned)

    def columns(self) -> ItemColumns:
        """What was added."""
        return self._writer.columns()

    def again(self, numbers: Sequence[int]) -> Iterator[SampleTasks]:
        """How some samples are made: named anew, because all of them would fill the memory."""
        return (self.keys.of(self.planned[number]) for number in numbers)

    def prompts(self, prompts: Sequence[str]) -> Iterator[tuple[PreservedItem, TextTask]]:
        """Name what prompts need that the base is held to.

        Each gets the control images of a sample, in turns, of the size that most samples have.
        Those of held-out samples are never trained on, here as well.
        """
        trained = [each for each in self.planned if not each.sample.validation]
        if not prompts or not trained:
            return
        kinds = [(each.bucket, each.control_buckets, len(each.sample.layers)) for each in trained]
        (wanted, _), *_ = Counter(kinds).most_common(1)
        hosts = [each for each, kind in zip(trained, kinds, strict=True) if kind == wanted]
        for prompt, host in zip(prompts, itertools.cycle(hosts), strict=False):
            yield self.keys.of_prompt(prompt, self.keys.of(host))

    def check_masks(self, recipe: SampleTasks, made: Collection[str], maker: Maker) -> None:
        """Refuse masks under which nothing of an image counts; say which are all black."""
        settings = self.keys.settings.mask
        for task in recipe.plain:
            if task.entry.key in maker.failed or task.entry.key in maker.missing:
                continue
            mask = read_entry(task.entry)["mask"]
            # What is given clean carries no loss.
            predicted = mask[1:] if mask.ndim == 3 and self.keys.endpoints else mask
            if counts_nothing(predicted, settings):
                maker.fail(task.entry, nothing_counts_error(recipe.item.name, task.sources[0]))
            elif task.entry.key in made and task.entry == recipe.item.mask and not mask.any():
                self.problems.append(
                    f"{task.what} ({task.sources[0]}) is black in all that is trained of it: "
                    "the whole image counts alike"
                )

    def leave_out(self, columns: ItemColumns, maker: Maker) -> ItemColumns:
        """The samples of which everything could be made."""
        left_out: set[int] = set()
        if maker.failed:
            keys = np.array(
                [columns.entry(row).key in maker.failed for row in range(len(columns.keys))]
            )
            for number in columns.having(keys).tolist():
                reasons = (maker.failed.get(entry.key) for entry in columns[number].entries)
                self._leave_out(columns.name(number), next(each for each in reasons if each))
                left_out.add(number)
        return columns.without(left_out)

    def _leave_out(self, name: str, error: DatasetError) -> None:
        if self.keys.settings.unreadable == "error":
            raise error
        self.problems.append(f"left out: {name}, because {error.found}")


def cache_folder(config: RunConfig) -> Path:
    """Where the run file keeps encoded samples."""
    return Path(config.cache.dir) if config.cache.dir else Path(config.output.dir) / "cache"
