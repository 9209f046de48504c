"""What a sample's cached files are made from: the one place that names them.

The key of a file is a hash of everything that its content depends on. Parts of a key that an
ordinary dataset does not have are left out of it, so that files keep the names that they had before
there were such parts.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from PIL import Image

from ...config import DatasetSection
from ...counters import counter_seed
from ...types import Bucket, Conditioning, PlannedSample
from ..drawn_masks import VERSION, with_mask
from ..file_memory import FileMemory
from ..image import fit_to_bucket, open_image, resize_exact
from .cache_file import Entry, make_entry, source_hash
from .items import CachedItem, PreservedItem


@dataclass(frozen=True, slots=True)
class SizedImage:
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
        """Read it at its size; `content` is the hash of the file.

        Raises:
            DatasetError: When it cannot be read.
        """
        image = open_image(self.path, animated, 3 if self.drawn else self.channels)
        if self.exact:
            return resize_exact(image, self.bucket.width, self.bucket.height)
        sized = fit_to_bucket(image, self.bucket)
        return with_mask(sized, counter_seed(0, content)) if self.filled else sized

    def parts(self, content: str) -> tuple[str | int, ...]:
        """Everything that its pixels depend on."""
        way = "exact" if self.exact else "cover"
        # Caches of opaque images keep the names that they had before there were others.
        kept = () if self.channels == 3 else ("alpha",)
        kept += (f"filled {VERSION}",) if self.filled else ()
        kept += ("drawn",) if self.drawn else ()
        return content, self.bucket.width, self.bucket.height, way, *kept


@dataclass(frozen=True, slots=True)
class ImageTask:
    """An image that the VAE encodes to the tensor ``latents``."""

    entry: Entry
    source: SizedImage


@dataclass(frozen=True, slots=True)
class TextTask:
    """A caption that the text encoder encodes, with what it sees of control images."""

    entry: Entry
    caption: str
    seen: tuple[SizedImage, ...]
    what: str


@dataclass(frozen=True, slots=True)
class PlainTask:
    """Tensors that are made without an encoder, such as a mask; `sources` are the files read."""

    entry: Entry
    make: Callable[[], Conditioning]
    sources: tuple[Path, ...]
    what: str


@dataclass(frozen=True, slots=True)
class Recipe:
    """A sample, and how each of its entries is made."""

    item: CachedItem
    images: tuple[ImageTask, ...]
    texts: tuple[TextTask, ...]
    plain: tuple[PlainTask, ...] = ()


@dataclass(frozen=True, slots=True)
class Recipes:
    """Names what samples need, without reading more of a file than its hash.

    Attributes:
        folder: The cache folder.
        identity: Names the encoders and their settings.
        settings: Of the dataset.
        channels: Of the pixels that are encoded.
        fills: Whether a control image is what the target is to be filled from.
        hashes: Of the image files.
    """

    folder: Path
    identity: str
    settings: DatasetSection
    channels: int
    fills: bool
    hashes: FileMemory

    def of(self, planned: PlannedSample) -> Recipe:
        """Name what a sample needs.

        Raises:
            DatasetError: When a file of it cannot be read.
        """
        sample = planned.sample
        image, controls, layers = self._sources(planned)
        parts = [each.parts(self.hashes.of(each.path)) for each in (image, *controls, *layers)]
        behind = 1 + len(controls)
        seen = tuple(part for each in parts[1:behind] for part in each)
        below = tuple(part for each in parts[behind:] for part in each)
        latents, *others = [self._entry("latents", *each) for each in parts]
        captions = (*sample.captions, "")
        texts = [self._entry("text", caption, *seen) for caption in captions]
        item = CachedItem(
            name=sample.name,
            bucket=planned.bucket,
            control_buckets=planned.control_buckets,
            latents=latents,
            controls=tuple(others[: len(controls)]),
            text=texts[0],
            empty_text=texts[-1],
            regularization=sample.regularization,
            source=source_hash(*parts[0], *sample.captions, *seen, *below),
            layers=tuple(others[len(controls) :]),
            more_texts=tuple(texts[1:-1]),
            validation=sample.validation,
            folder=sample.folder,
            repeats=sample.repeats,
            weight=sample.weight,
        )
        what = f"the caption of {sample.name}"
        # The image's own layers before its controls: the order in which they are encoded.
        sources = (image, *layers, *controls)
        entries = (item.latents, *item.layers, *item.controls)
        return Recipe(
            item,
            tuple(ImageTask(*pair) for pair in zip(entries, sources, strict=True)),
            tuple(
                TextTask(entry, caption, controls, what)
                for entry, caption in zip(texts, captions, strict=True)
            ),
        )

    def of_prompt(self, prompt: str, host: Recipe) -> tuple[PreservedItem, TextTask]:
        """Name what a prompt needs that the base is held to, with the controls of a sample."""
        controls, item = host.texts[0].seen, host.item
        seen = (each.parts(self.hashes.of(each.path)) for each in controls)
        text = self._entry("text", prompt, *(part for parts in seen for part in parts))
        kept = PreservedItem(prompt, item.bucket, item.controls, text, len(item.layers))
        return kept, TextTask(text, prompt, controls, f"the prompt {prompt!r}")

    def _sources(
        self, planned: PlannedSample
    ) -> tuple[SizedImage, tuple[SizedImage, ...], tuple[SizedImage, ...]]:
        """Its image, its control images and its layers, each at its size."""
        sample = planned.sample
        exact = self.settings.control_area is not None
        image, *layers = (
            SizedImage(path, planned.bucket, False, self.channels)
            for path in (sample.image, *sample.layers)
        )
        channels = 4 if self.fills else self.channels
        controls = tuple(
            # The target of a hole of its own would be the white that lies behind the hole.
            SizedImage(
                path, bucket, exact, channels, self.fills, self.fills and path == sample.image
            )
            for path, bucket in zip(sample.controls, planned.control_buckets, strict=True)
        )
        return image, controls, tuple(layers)

    def _entry(self, kind: str, *parts: str | int) -> Entry:
        return make_entry(self.folder, kind, self.identity, *parts)
