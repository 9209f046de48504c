"""Encode every image and caption once and keep the result by content.

The name of a cached file is a hash of all that its content depends on: the image's bytes, the
size, the encoders, the caption. So nothing is ever stale, a changed caption costs one text
encoding, and several datasets and processes may share a folder.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

import torch
from PIL import Image
from torch import Tensor

from ...config import DatasetSection, RunConfig
from ...counters import counter_seed
from ...errors import DatasetError
from ...printable import listed
from ...tensors.rounding import all_finite
from ...types import Bucket, Conditioning, PlannedSample
from ..buckets import Plan
from ..drawn_masks import VERSION, with_mask
from ..image import fit_to_bucket, on_white, open_image, resize_exact, to_pixels
from .cache_file import ContentHashes, Entry, is_sound, make_entry, source_hash, write_entry
from .cached_dataset import CachedDataset, CachedItem, PreservedItem

__all__ = ["CachedDataset", "Encoders", "build_cache"]


class Encoders(Protocol):
    """What turns images and captions into what the denoiser reads."""

    def encode_image(self, pixels: Tensor) -> Tensor:
        """Encode pixels `[1, 3, H, W]` in [-1, 1] to normalised latents `[1, C, h, w]`.

        Of a family whose VAE reads transparency they are `[1, 4, H, W]`.
        """
        ...

    def encode_text(self, caption: str, controls: Sequence[Image.Image]) -> Conditioning:
        """Encode a caption, and what the text encoder sees of the control images, which are RGB."""
        ...


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

    Returns:
        The encoded dataset, in the order of the plan.

    Raises:
        DatasetError: When an image cannot be read or does not encode to finite numbers, or when
            no sample is left.
        StorageError: When the cache cannot be written.
    """
    builder = _Builder(folder, identity, open_encoders, settings, channels, notify, verify, fills)
    recipes = [recipe for planned in plan.samples if (recipe := builder.describe(planned))]
    prompts = _preserved(builder, recipes, preserved_prompts)
    texts = [item.text for item, _ in prompts]
    builder.find_missing([*(e for recipe in recipes for e in recipe.item.entries), *texts])
    builder.hashes.save()
    # All images before all texts: encoders that do not fit together change places once.
    recipes = [recipe for recipe in recipes if builder.complete_images(recipe)]
    items = [recipe.item for recipe in recipes if builder.complete_texts(recipe)]
    kept = [item for item, host in prompts if builder.complete_prompt(item, host)]
    if not items:
        raise DatasetError(
            f"no sample is left ({listed(builder.problems, 5, '; ') or 'the plan is empty'})",
            "at least one image that can be encoded",
            "Fix the images named here.",
        )
    return CachedDataset(items, builder.encoded, builder.reused, builder.problems, preserved=kept)


def _preserved(
    builder: _Builder, recipes: Sequence[_Recipe], prompts: Sequence[str]
) -> list[tuple[PreservedItem, _Recipe]]:
    """Give each prompt the control images of a sample, its host, in turns."""
    if not prompts or not recipes:
        return []
    kinds = Counter((each.item.bucket, each.item.kind) for each in recipes)
    (wanted, _), *_ = kinds.most_common(1)
    hosts = [each for each in recipes if (each.item.bucket, each.item.kind) == wanted]
    pairs = zip(prompts, itertools.cycle(hosts), strict=False)
    return [(builder.describe_prompt(prompt, host), host) for prompt, host in pairs]


@dataclass(frozen=True, slots=True)
class _SizedImage:
    """An image file at a size.

    `exact` resizes without keeping the aspect ratio; `filled` gives it a mask where it has none.
    `drawn` lays it on white before, so that its mask is drawn in any case.
    """

    path: Path
    bucket: Bucket
    exact: bool
    channels: int
    filled: bool = False
    drawn: bool = False

    def sized(self, animated: str, content: str) -> Image.Image:
        image = open_image(self.path, animated, 3 if self.drawn else self.channels)
        if self.exact:
            return resize_exact(image, self.bucket.width, self.bucket.height)
        sized = fit_to_bucket(image, self.bucket)
        return with_mask(sized, counter_seed(0, content)) if self.filled else sized

    def parts(self, content: str) -> tuple[str | int, ...]:
        way = "exact" if self.exact else "cover"
        # Caches of opaque images keep the names that they had before there were others.
        kept = () if self.channels == 3 else ("alpha",)
        kept += (f"filled {VERSION}",) if self.filled else ()
        kept += ("drawn",) if self.drawn else ()
        return content, self.bucket.width, self.bucket.height, way, *kept


@dataclass(frozen=True, slots=True)
class _Recipe:
    """How the entries of one sample are made."""

    item: CachedItem
    caption: str
    image: _SizedImage
    controls: tuple[_SizedImage, ...]
    layers: tuple[_SizedImage, ...]
    seen: tuple[str | int, ...]

    @property
    def images(self) -> tuple[tuple[_SizedImage, Entry], ...]:
        """All that the VAE encodes, and where it is kept."""
        item, sources = self.item, (self.image, *self.layers, *self.controls)
        entries = (item.latents, *item.layers, *item.controls)
        return tuple(zip(sources, entries, strict=True))


@dataclass(slots=True)
class _Builder:
    folder: Path
    identity: str
    open_encoders: Callable[[], Encoders]
    settings: DatasetSection
    channels: int
    notify: Callable[[int, int], None]
    verify: bool
    fills: bool = False
    encoded: int = 0
    reused: int = 0
    problems: list[str] = field(default_factory=list)
    hashes: ContentHashes = field(init=False)
    _missing: set[str] = field(default_factory=set)
    _total: int = 0
    _encoders: Encoders | None = None

    def __post_init__(self) -> None:
        self.hashes = ContentHashes(self.folder, trust=not self.verify)

    def describe(self, planned: PlannedSample) -> _Recipe | None:
        sample = planned.sample
        exact = self.settings.control_area is not None
        image, *layers = (
            _SizedImage(path, planned.bucket, False, self.channels)
            for path in (sample.image, *sample.layers)
        )
        channels = 4 if self.fills else self.channels
        controls = tuple(
            # The target of a hole of its own would be the white that lies behind the hole.
            _SizedImage(
                path, bucket, exact, channels, self.fills, self.fills and path == sample.image
            )
            for path, bucket in zip(sample.controls, planned.control_buckets, strict=True)
        )
        try:
            described = [
                each.parts(self.hashes.of(each.path)) for each in (image, *controls, *layers)
            ]
        except DatasetError as error:
            self._leave_out(sample.name, error)
            return None
        behind = 1 + len(controls)
        seen = tuple(part for parts in described[1:behind] for part in parts)
        below = tuple(part for parts in described[behind:] for part in parts)
        item = CachedItem(
            name=sample.name,
            bucket=planned.bucket,
            control_buckets=planned.control_buckets,
            latents=self._entry("latents", *described[0]),
            controls=tuple(self._entry("latents", *parts) for parts in described[1:behind]),
            text=self._entry("text", sample.caption, *seen),
            empty_text=self._entry("text", "", *seen),
            regularization=sample.regularization,
            validation=sample.validation,
            folder=sample.folder,
            repeats=sample.repeats,
            weight=sample.weight,
            source=source_hash(*described[0], sample.caption, *seen, *below),
            layers=tuple(self._entry("latents", *parts) for parts in described[behind:]),
        )
        return _Recipe(item, sample.caption, image, controls, tuple(layers), seen)

    def describe_prompt(self, prompt: str, host: _Recipe) -> PreservedItem:
        """Name what a prompt that the base is held to needs, beside a sample's controls."""
        text = self._entry("text", prompt, *host.seen)
        item = host.item
        return PreservedItem(prompt, item.bucket, item.controls, text, len(item.layers))

    def find_missing(self, needed: Iterable[Entry]) -> None:
        entries = {entry.key: entry for entry in needed}
        self._missing = {
            key for key, entry in entries.items() if not is_sound(entry, thorough=self.verify)
        }
        self._total = len(self._missing)
        self.reused = len(entries) - self._total
        if self._missing:
            self.notify(0, self._total)

    def complete_images(self, recipe: _Recipe) -> bool:
        """Encode the images that a sample lacks; False when it has to be left out."""
        missing = [image for image, entry in recipe.images if entry.key in self._missing]
        images = self._read(recipe, missing)
        if images is None:
            return False
        for image, entry in recipe.images:
            self._supply(
                entry,
                lambda image=image: {"latents": self._latents(images[image], image.channels)},
                str(image.path),
            )
        return True

    def complete_texts(self, recipe: _Recipe) -> bool:
        """Encode the texts that a sample lacks; False when it has to be left out."""
        item = recipe.item
        if all(entry.key not in self._missing for entry in (item.text, item.empty_text)):
            return True
        images = self._read(recipe, recipe.controls)
        if images is None:
            return False
        seen = [on_white(images[control]) for control in recipe.controls]
        for entry, caption in ((item.text, recipe.caption), (item.empty_text, "")):
            self._supply(
                entry,
                lambda caption=caption: self._open().encode_text(caption, seen),
                f"the caption of {item.name}",
            )
        return True

    def complete_prompt(self, item: PreservedItem, host: _Recipe) -> bool:
        """Encode a prompt that the base is held to; False when its controls were left out."""
        if any(entry.key in self._missing for entry in item.controls):
            return False
        if item.text.key in self._missing:
            seen = [on_white(self._decode(control)) for control in host.controls]
            self._supply(
                item.text,
                lambda: self._open().encode_text(item.prompt, seen),
                f"the prompt {item.prompt!r}",
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

    def _latents(self, image: Image.Image, channels: int) -> Tensor:
        latents = self._open().encode_image(to_pixels(image, channels)[None])
        if latents.ndim != 4 or latents.shape[0] != 1:
            raise ValueError(f"encode_image gave shape {list(latents.shape)}, not [1, C, h, w]")
        return latents[0]

    def _read(
        self, recipe: _Recipe, sources: Iterable[_SizedImage]
    ) -> dict[_SizedImage, Image.Image] | None:
        try:
            return {source: self._decode(source) for source in sources}
        except DatasetError as error:
            self._leave_out(recipe.item.name, error)
            return None

    def _decode(self, source: _SizedImage) -> Image.Image:
        image = source.sized(self.settings.animated, self.hashes.of(source.path))
        self.hashes.check_unchanged(source.path)
        return image

    def _open(self) -> Encoders:
        if self._encoders is None:
            self._encoders = self.open_encoders()
        return self._encoders

    def _leave_out(self, name: str, error: DatasetError) -> None:
        if self.settings.unreadable == "error":
            raise error
        self.problems.append(f"left out: {name}, because {error.found}")

    def _entry(self, kind: str, *parts: str | int) -> Entry:
        return make_entry(self.folder, kind, self.identity, *parts)


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
