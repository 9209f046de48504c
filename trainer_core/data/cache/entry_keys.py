"""The keys of cached files: what each of a sample's files is made from, and what makes another one.

The key of a file is a hash of everything that its content depends on. Parts of a key that an
ordinary dataset does not have are left out of it, so that files keep the names that they had before
there were such parts.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import astuple, dataclass, replace
from functools import cached_property
from pathlib import Path

from PIL import Image

from ...config import CacheSection, DatasetSection
from ...config.dataset import DatasetFolder, dataset_folders
from ...counters import counter_seed
from ...types import (
    ANY_CLIPS,
    CONTROL,
    SOUND,
    Bucket,
    ClipPart,
    Conditioning,
    FrameGrid,
    PlannedSample,
    Sample,
)
from ..captions.bracket_weights import escaped_brackets
from ..captions.rules import with_class_word
from ..clips import is_clip, read_frames
from ..crop import resize_exact
from ..drawn_masks import VERSION, with_mask
from ..file_memory import FileMemory
from ..framing import MIDDLE, Framing, MaskSource, mirrored
from ..image import open_image
from ..sounds import has_sound
from .cache_file import Entry, make_entry, source_hash
from .cached_item import CachedItem, Mirrored, PreservedItem

Grid = Callable[[int, int], tuple[int, int, int]]
"""Width and height in pixels to h and w of the latents, and the latents along a token's side."""


def no_grid(width: int, height: int) -> tuple[int, int, int]:
    """Where no image has a mask.

    Raises:
        ValueError: When one has.
    """
    raise ValueError("masks need the grid of the latents")


@dataclass(frozen=True, slots=True)
class SizedImage:
    """An image file at a size.

    `exact` resizes without keeping the aspect ratio; `filled` gives it a mask where it has none.
    `drawn` lays it on white before, so that its mask is drawn in any case. `framing` says what is
    kept of it, unless it is `exact`; `flipped` mirrors all that came out. Of a `clip` the frames
    at its `endpoints` that the base is given are encoded besides.
    """

    path: Path
    bucket: Bucket
    exact: bool
    channels: int
    filled: bool = False
    drawn: bool = False
    framing: Framing = MIDDLE
    flipped: bool = False
    clip: ClipPart | None = None
    endpoints: tuple[str, ...] = ()

    def frames(self) -> Iterator[Image.Image]:
        """Read a clip's frames, each at the size.

        Raises:
            DatasetError: When it cannot be decoded.
        """
        assert self.clip is not None
        for image in read_frames(self.path, self.clip):
            sized = self.framing.fit(image, self.bucket, "error")
            yield mirrored(sized) if self.flipped else sized

    def sized(self, animated: str, content: str) -> Image.Image:
        """Read it at its size; `content` is the hash of the file.

        Raises:
            DatasetError: When it cannot be read.
        """
        image = open_image(self.path, animated, 3 if self.drawn else self.channels)
        sized = self._fitted(image, animated, content)
        return mirrored(sized) if self.flipped else sized

    def _fitted(self, image: Image.Image, animated: str, content: str) -> Image.Image:
        if self.exact:
            return resize_exact(image, self.bucket.width, self.bucket.height)
        sized = self.framing.fit(image, self.bucket, animated)
        return with_mask(sized, counter_seed(0, content)) if self.filled else sized

    def parts(self, content: str) -> tuple[str | int, ...]:
        """Everything that its pixels depend on."""
        way = "exact" if self.exact else "cover"
        # Caches of opaque images keep the names that they had before there were others.
        kept = () if self.channels == 3 else ("alpha",)
        kept += (f"filled {VERSION}",) if self.filled else ()
        kept += ("drawn",) if self.drawn else ()
        kept += () if self.exact else self.framing.parts()
        kept += ("mirrored",) if self.flipped else ()
        kept += (
            () if self.clip is None else ("clip", *map(repr, astuple(self.clip)), *self.endpoints)
        )
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
    images: tuple[SizedImage, ...]
    what: str


@dataclass(frozen=True, slots=True)
class PlainTask:
    """Tensors that are made without an encoder, such as a mask; `sources` are the files read."""

    entry: Entry
    make: Callable[[], Conditioning]
    sources: tuple[Path, ...]
    what: str


@dataclass(frozen=True, slots=True)
class SampleTasks:
    """A sample, and how each of its entries is made."""

    item: CachedItem
    images: tuple[ImageTask, ...]
    texts: tuple[TextTask, ...]
    plain: tuple[PlainTask, ...] = ()


@dataclass(frozen=True, slots=True)
class _Side:
    """A sample as it is, or mirrored.

    Attributes:
        images: The image, its layers, its control images.
        parts: What each of them is made from.
    """

    images: tuple[ImageTask, ...]
    layers: int
    parts: tuple[tuple[str | int, ...], ...]
    plain: tuple[PlainTask, ...]

    @property
    def kept(self) -> Mirrored:
        """Where its parts are kept, but for texts."""
        image, *others = (each.entry for each in self.images)
        mask = self.plain[0].entry if self.plain else None
        return Mirrored(image, tuple(others[: self.layers]), tuple(others[self.layers :]), mask)

    @property
    def controls(self) -> tuple[SizedImage, ...]:
        return tuple(each.source for each in self.images[1 + self.layers :])

    @property
    def seen(self) -> tuple[str | int, ...]:
        """What the text encoder sees of it is made from this."""
        return tuple(part for each in self.parts[1 + self.layers :] for part in each)

    @property
    def below(self) -> tuple[str | int, ...]:
        """What the layers are made from."""
        return tuple(part for each in self.parts[1 : 1 + self.layers] for part in each)


@dataclass(frozen=True)
class EntryKeys:
    """Names what samples need, without reading more of a file than its hash.

    Attributes:
        identity: Names the encoders and their settings, such as the text length, and the number
            format that is kept (`encoded_as`).
        channels: Of the pixels that are encoded: 4 with transparency, which the text encoder sees
            laid on white.
        fills: Whether a control image is what the target is to be filled from: its transparent area
            is, or one that is drawn.
        shown: Whether the text encoder sees the control images (`TextSpec.shown`).
        grid: Of the latents; asked for images with masks.
        weighs: Whether the tokenizer reads round brackets as weights (`EncoderSource`).
        endpoints: Which frames of clips the base is given (`base_requirements.endpoint_kinds`).
        clips: Lengths of clips and of their latents; asked for masks that are clips.
        sounds: Names what encodes the sound of clips (`EncoderSource`); empty for none.
    """

    folder: Path
    identity: str
    settings: DatasetSection
    hashes: FileMemory
    channels: int = 3
    fills: bool = False
    shown: bool = False
    grid: Grid = no_grid
    weighs: bool = False
    endpoints: tuple[str, ...] = ()
    clips: FrameGrid = ANY_CLIPS
    sounds: str = ""

    def of(self, planned: PlannedSample) -> SampleTasks:
        """Name what a sample needs.

        Raises:
            DatasetError: When a file of it cannot be read.
        """
        sample = planned.sample
        side = self._side(planned)
        captions = (*self._written(sample, sample.captions), "")
        texts = self._texts(side, captions, _caption_of(sample))
        bare = self._bare(sample, captions)
        ordinary = self._class_captions(sample)
        classed = self._texts(side, ordinary, f"{_caption_of(sample)} with the class word")
        images, plain = side.images, side.plain
        sound = self._sound(sample)
        entries = [each.entry for each in texts]
        if bare:
            classed += self._without_controls(sample, ordinary)
        flipped = None
        if planned.flipped:
            other = self._side(planned, flipped=True)
            # A text encoder that sees control images sees them mirrored.
            sees = self.shown and other.controls
            more = self._texts(other, captions, _caption_of(sample)) if sees else ()
            classed += self._texts(other, ordinary, _caption_of(sample)) if sees else ()
            flipped = replace(other.kept, texts=tuple(each.entry for each in more))
            images, plain, texts = images + other.images, plain + other.plain, texts + more
        kept = side.kept
        item = CachedItem(
            name=sample.name,
            bucket=planned.bucket,
            control_buckets=planned.control_buckets,
            latents=kept.latents,
            controls=kept.controls,
            text=entries[0],
            empty_text=entries[-1],
            regularization=sample.regularization,
            source=source_hash(
                *self._described(side, (*captions[:-1], *ordinary), flipped is not None),
                *(("sound",) if sound else ()),
            ),
            layers=kept.layers,
            more_texts=tuple(entries[1:-1]),
            bare_texts=tuple(task.entry for task in bare),
            mask=kept.mask,
            flipped=flipped,
            validation=sample.validation,
            folder=sample.folder,
            repeats=sample.repeats,
            weight=sample.weight,
            class_texts=tuple(task.entry for task in classed),
            sound=sound[0].entry if sound else None,
        )
        return SampleTasks(item, images + sound, texts + bare + classed, plain)

    @staticmethod
    def _described(side: _Side, captions: Sequence[str], flipped: bool) -> Iterator[str | int]:
        """All that a sample is made from, however precisely it is encoded."""
        yield from side.parts[0]
        yield from captions
        yield from side.seen
        yield from side.below
        yield from (each.entry.key for each in side.plain)
        if flipped:
            yield "mirrored"

    def _side(self, planned: PlannedSample, *, flipped: bool = False) -> _Side:
        image, controls, layers = self._sources(planned, flipped)
        # The image's own layers before its controls: the order in which they are encoded.
        sources = (image, *layers, *controls)
        parts = tuple(each.parts(self.hashes.of(each.path)) for each in sources)
        entries = (self._entry("latents", *each) for each in parts)
        tasks = tuple(ImageTask(*pair) for pair in zip(entries, sources, strict=True))
        plain = (self._mask(planned, image.framing, flipped),) if planned.sample.mask else ()
        return _Side(tasks, len(layers), parts, plain)

    def _sound(self, sample: Sample) -> tuple[ImageTask, ...]:
        """Its sound, which no size and no mirror changes; none of a clip that is silent."""
        part = sample.clip
        if not self.sounds or part is None or not has_sound(sample.image, part):
            return ()
        source = SizedImage(
            sample.image, Bucket(1, 1, part.frames), True, 3, clip=part, endpoints=(SOUND,)
        )
        content = self.hashes.of(sample.image)
        return (ImageTask(self._entry("sound", self.sounds, *source.parts(content)), source),)

    def _texts(self, side: _Side, captions: Sequence[str], what: str) -> tuple[TextTask, ...]:
        # No text encoder sees a control clip.
        if not side.seen or side.controls[0].clip is not None:
            # Most samples end with the empty caption, which is one and the same file.
            return tuple(
                TextTask(self._entry("text", each) if each else self._no_text, each, (), what)
                for each in captions
            )
        entries = ((self._entry("text", caption, *side.seen), caption) for caption in captions)
        return tuple(TextTask(*each, side.controls, what) for each in entries)

    @cached_property
    def _no_text(self) -> Entry:
        return self._entry("text", "")

    @cached_property
    def _maskless(self) -> Framing:
        return Framing(self.settings.crop)

    def _mask(self, planned: PlannedSample, framing: Framing, flipped: bool) -> PlainTask:
        mask, bucket = framing.mask, planned.bucket
        if mask is None:
            raise ValueError("a framing of an image without a mask")
        *latents, patch = self.grid(bucket.width, bucket.height)
        # Of no encoder: bases with the same grid share it. Crops that a mask decides name it twice.
        parts = [*mask.parts(), bucket.width, bucket.height, *latents, patch, *framing.parts()]
        if mask.clip is not None:
            parts += [each for each in (self.clips.every, self.clips.cycle) if each]
        entry = make_entry(self.folder, "masks", *parts, *(("mirrored",) if flipped else ()))

        def make() -> Conditioning:
            grid = latents[0], latents[1]
            animated = self.settings.animated
            found = framing.latent_mask(bucket, grid, patch, animated=animated, clips=self.clips)
            self.hashes.check_unchanged(mask.path)
            return {"mask": (found.flip(-1) if flipped else found).half()}

        return PlainTask(entry, make, (mask.path,), f"the mask of {planned.sample.name}")

    def _bare(self, sample: Sample, captions: Sequence[str]) -> tuple[TextTask, ...]:
        """Its texts without the control images, where these are left out and would be seen.

        Nothing of an image is in their keys: samples with the same caption share them.
        """
        own = self._settings_of(sample)
        if not own.control_dropout or not self.shown or not sample.controls or sample.validation:
            return ()
        return self._without_controls(sample, captions)

    def _without_controls(self, sample: Sample, captions: Sequence[str]) -> tuple[TextTask, ...]:
        what = f"{_caption_of(sample)} without its control images"
        return tuple(self.of_text(each, what) for each in captions)

    def of_text(self, text: str, what: str) -> TextTask:
        """Name what a text needs that is read without an image; `what` it is, for messages."""
        return TextTask(self._entry("text", text), text, (), what)

    def _class_captions(self, sample: Sample) -> tuple[str, ...]:
        """Its captions with the class word for the trigger word, where the base is held to them."""
        kept, trigger = self.settings.preservation, self._settings_of(sample).trigger_word
        wanted = kept.holds("output") and trigger.strip()
        if not wanted or sample.validation or sample.regularization:
            return ()
        own = (with_class_word(each, trigger, kept.class_word) for each in sample.captions)
        return self._written(sample, own)

    def _written(self, sample: Sample, captions: Iterable[str]) -> tuple[str, ...]:
        """Captions as they are encoded."""
        escapes = self.weighs and self._settings_of(sample).captions.escape_brackets
        return tuple(escaped_brackets(each) if escapes else each for each in captions)

    def _settings_of(self, sample: Sample) -> DatasetSection:
        return self._folders[sample.folder].settings if self._folders else self.settings

    @cached_property
    def _folders(self) -> tuple[DatasetFolder, ...]:
        return dataset_folders(self.settings)

    def of_prompt(self, prompt: str, host: SampleTasks) -> tuple[PreservedItem, TextTask]:
        """Name what a prompt needs that the base is held to, with the controls of a sample."""
        controls, item = host.texts[0].images, host.item
        parts_of = (each.parts(self.hashes.of(each.path)) for each in controls)
        text = self._entry("text", prompt, *(part for parts in parts_of for part in parts))
        kept = PreservedItem(prompt, item.bucket, item.controls, text=text, layers=len(item.layers))
        return kept, TextTask(text, prompt, controls, f"the prompt {prompt!r}")

    def _sources(
        self, planned: PlannedSample, flipped: bool
    ) -> tuple[SizedImage, tuple[SizedImage, ...], tuple[SizedImage, ...]]:
        """Its image, its control images and its layers, each at its size."""
        sample, framing = planned.sample, self._framing(planned.sample)
        exact = self.settings.control_area is not None
        image, *layers = (
            SizedImage(
                path,
                planned.bucket,
                False,
                self.channels,
                framing=framing,
                flipped=flipped,
                clip=sample.clip,
                endpoints=self.endpoints if sample.clip is not None else (),
            )
            for path in (sample.image, *sample.layers)
        )
        channels = 4 if self.fills else self.channels
        controls = tuple(
            # The target of a hole of its own would be the white that lies behind the hole.
            SizedImage(
                *(path, bucket, exact and sample.clip is None, channels, self.fills),
                drawn=self.fills and path == sample.image,
                framing=framing,
                flipped=flipped,
                clip=sample.clip,
                endpoints=(CONTROL,) if sample.clip is not None else (),
            )
            for path, bucket in zip(sample.controls, planned.control_buckets, strict=True)
        )
        return image, controls, tuple(layers)

    def _framing(self, sample: Sample) -> Framing:
        if sample.mask is None:
            own = sample.focus is not None
            return Framing(self.settings.crop, focus=sample.focus) if own else self._maskless
        moves = sample.clip is not None and is_clip(sample.mask)
        mask = MaskSource(
            sample.mask,
            self.hashes.of(sample.mask),
            (sample.width, sample.height),
            transparency=sample.mask == sample.image,
            invert=self.settings.mask.invert,
            clip=sample.clip if moves else None,
        )
        return Framing(self.settings.crop, mask, sample.focus)

    def _entry(self, kind: str, *parts: str | int) -> Entry:
        return make_entry(self.folder, kind, self.identity, *parts)


def _caption_of(sample: Sample) -> str:
    return f"the caption of {sample.name}"


def encoded_as(identity: str, options: CacheSection) -> str:
    """The identity of encoders, with the number format in which a cache keeps what they yield."""
    # An ordinary cache keeps the names that its files had before there was a choice.
    return identity if options.dtype == "auto" else f"{identity} {options.dtype}"
