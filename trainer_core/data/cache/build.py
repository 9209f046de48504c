"""Encode every image and caption once and keep the result by content.

The name of a cached file is a hash of all that its content depends on: the image's bytes, the
size, the encoders, the caption. So nothing is ever stale, a changed caption costs one text
encoding, and several datasets and processes may share a folder.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import torch
from PIL import Image
from torch import Tensor

from ...config import DatasetSection, RunConfig
from ...errors import DatasetError
from ...printable import listed
from ...tensors.rounding import all_finite
from ...types import Conditioning, PlannedSample
from ..buckets import Plan
from ..file_memory import FileMemory
from ..image import on_white, to_pixels
from ..masks import counts_nothing, may_count_nothing, nothing_counts_error
from .cache_file import Entry, is_sound, read_entry, write_entry
from .cached_dataset import CachedDataset
from .encoders import Encoders
from .recipes import Grid, ImageTask, Recipe, Recipes, SizedImage, TextTask, no_grid

__all__ = ["CachedDataset", "Encoders", "build_cache"]


def _ignore(done: int, total: int) -> None:
    """Tell nobody."""


@torch.no_grad()
def build_cache(
    plan: Plan,
    folder: Path,
    identity: str,
    open_encoders: Callable[[], Encoders],
    settings: DatasetSection,
    notify: Callable[[int, int], None] = _ignore,
    verify: bool = False,
    preserved_prompts: Sequence[str] = (),
    channels: int = 3,
    fills: bool = False,
    shown: bool = False,
    grid: Grid = no_grid,
) -> CachedDataset:
    """Encode what is missing and describe the whole.

    Every file is written as soon as it is encoded: an interrupted build goes on where it stopped.

    Args:
        plan: Samples with their sizes.
        folder: The cache folder; made when something has to be written.
        identity: Names the encoders and their settings, such as the text length.
        open_encoders: Loads the encoders; called at most once, and only if something is missing.
        settings: Policies, and how control images are sized.
        notify: Called with files done and files missing at the start, before anything is encoded,
            and after each file. An exception that it raises stops the build.
        verify: Whether to read every cached file and every image again instead of believing
            headers and file stamps.
        preserved_prompts: What the base is held to, for images of the size that most samples have,
            and with the control images and as many layers as samples of that size.
        channels: Of the pixels that are encoded: 4 with transparency, which the text encoder sees
            laid on white.
        fills: Whether a control image is what the target is to be filled from: its transparent area
            is, or one that is drawn.
        shown: Whether the text encoder sees the control images (`Family.shown`).
        grid: Width and height in pixels to h and w of the latents and the latents along a token's
            side; asked for images with masks.

    Returns:
        The encoded dataset, in the order of the plan.

    Raises:
        DatasetError: When an image cannot be read or does not encode to finite numbers, or when
            no sample is left.
        StorageError: When the cache cannot be written.
    """
    hashes = FileMemory(folder, trust=not verify)
    naming = Recipes(folder, identity, settings, channels, fills, shown, hashes, grid)
    builder = _Builder(naming, open_encoders, notify, verify)
    recipes = [recipe for planned in plan.samples if (recipe := builder.describe(planned))]
    prompts = list(naming.of_prompts(preserved_prompts, recipes))
    texts = [item.text for item, _ in prompts]
    builder.find_missing([*(e for recipe in recipes for e in recipe.item.entries), *texts])
    hashes.save()
    # All images before all texts: encoders that do not fit together change places once.
    recipes = [recipe for recipe in recipes if builder.complete_images(recipe)]
    items = [recipe.item for recipe in recipes if builder.complete_texts(recipe)]
    kept = [
        item
        for item, task in prompts
        if builder.all_there(item.controls) and builder.complete_text(task)
    ]
    if not items:
        raise DatasetError(
            f"no sample is left ({listed(builder.problems, 5, '; ') or 'the plan is empty'})",
            "at least one image that can be encoded",
            "Fix the images named here.",
        )
    return CachedDataset(items, builder.encoded, builder.reused, builder.problems, preserved=kept)


@dataclass(slots=True)
class _Builder:
    naming: Recipes
    open_encoders: Callable[[], Encoders]
    notify: Callable[[int, int], None]
    verify: bool
    encoded: int = 0
    reused: int = 0
    problems: list[str] = field(default_factory=list)
    _missing: set[str] = field(default_factory=set)
    _total: int = 0
    _encoders: Encoders | None = None

    def describe(self, planned: PlannedSample) -> Recipe | None:
        try:
            return self.naming.of(planned)
        except DatasetError as error:
            self._leave_out(planned.sample.name, error)
            return None

    def find_missing(self, needed: Iterable[Entry]) -> None:
        entries = {entry.key: entry for entry in needed}
        self._missing = {
            key for key, entry in entries.items() if not is_sound(entry, thorough=self.verify)
        }
        self._total = len(self._missing)
        self.reused = len(entries) - self._total
        if self._missing:
            self.notify(0, self._total)

    def all_there(self, entries: Iterable[Entry]) -> bool:
        return not any(entry.key in self._missing for entry in entries)

    def complete_images(self, recipe: Recipe) -> bool:
        """Make the images and masks that a sample lacks; False when it has to be left out."""
        missing = [each for each in recipe.images if each.entry.key in self._missing]
        images = self._read(recipe, [each.source for each in missing])
        if images is None:
            return False
        for task in missing:
            self._supply(
                task.entry,
                lambda task=task: {"latents": self._latents(images[task.source], task)},
                str(task.source.path),
            )
        try:
            self._complete_masks(recipe)
        except DatasetError as error:
            self._leave_out(recipe.item.name, error)
            return False
        return True

    def _complete_masks(self, recipe: Recipe) -> None:
        settings = self.naming.settings.mask
        for each in recipe.plain:
            made = each.entry.key in self._missing
            self._supply(each.entry, each.make, each.what)
            # Weights are no part of what is kept: with one of 0 all masks are read.
            if made or may_count_nothing(settings):
                mask = read_entry(each.entry)["mask"]
                if counts_nothing(mask, settings):
                    raise nothing_counts_error(recipe.item.name, each.sources[0])
                if made and each.entry == recipe.item.mask and not mask.any():
                    self.problems.append(
                        f"{each.what} ({each.sources[0]}) is black in all that is trained of it: "
                        "the whole image counts alike"
                    )

    def complete_texts(self, recipe: Recipe) -> bool:
        """Encode the texts that a sample lacks; False when it has to be left out."""
        missing = [task for task in recipe.texts if task.entry.key in self._missing]
        seen = self._read(recipe, {source: None for task in missing for source in task.seen})
        if seen is None:
            return False
        for task in missing:
            self.complete_text(task, seen)
        return True

    def complete_text(
        self, task: TextTask, images: Mapping[SizedImage, Image.Image] | None = None
    ) -> bool:
        """Encode a text if it lacks; `images` holds what is read already."""
        if task.entry.key in self._missing:
            seen = [on_white((images or {}).get(each) or self._decode(each)) for each in task.seen]
            self._supply(
                task.entry, lambda: self._open().encode_text(task.caption, seen), task.what
            )
        return True

    def _supply(self, entry: Entry, encode: Callable[[], Conditioning], what: str) -> None:
        if entry.key not in self._missing:
            return
        # Another process may build the same cache and have come first.
        if is_sound(entry, thorough=self.verify):
            self.reused += 1
        else:
            tensors = encode()
            _require_finite(tensors, what)
            write_entry(entry, tensors)
            self.encoded += 1
        self._missing.discard(entry.key)
        self.notify(self._total - len(self._missing), self._total)

    def _latents(self, image: Image.Image, task: ImageTask) -> Tensor:
        latents = self._open().encode_image(to_pixels(image, task.source.channels)[None])
        if latents.ndim != 4 or latents.shape[0] != 1:
            raise ValueError(f"encode_image gave shape {list(latents.shape)}, not [1, C, h, w]")
        return latents[0]

    def _read(
        self, recipe: Recipe, sources: Iterable[SizedImage]
    ) -> dict[SizedImage, Image.Image] | None:
        try:
            return {source: self._decode(source) for source in sources}
        except DatasetError as error:
            self._leave_out(recipe.item.name, error)
            return None

    def _decode(self, source: SizedImage) -> Image.Image:
        hashes = self.naming.hashes
        image = source.sized(self.naming.settings.animated, hashes.of(source.path))
        hashes.check_unchanged(source.path)
        return image

    def _open(self) -> Encoders:
        if self._encoders is None:
            self._encoders = self.open_encoders()
        return self._encoders

    def _leave_out(self, name: str, error: DatasetError) -> None:
        if self.naming.settings.unreadable == "error":
            raise error
        self.problems.append(f"left out: {name}, because {error.found}")


def _require_finite(tensors: Conditioning, what: str) -> None:
    for name, tensor in tensors.items():
        if not all_finite(tensor):
            raise DatasetError(
                f"{what} does not encode to finite numbers ({name})",
                "finite latents and text embeddings",
                "Encode in a wider precision with training.precision=fp32, or remove the sample.",
            )


def cache_folder(config: RunConfig) -> Path:
    """Where the run file keeps encoded samples."""
    return Path(config.cache.dir) if config.cache.dir else Path(config.output.dir) / "cache"
