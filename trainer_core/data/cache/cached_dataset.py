"""The encoded dataset, read from the cache."""

from __future__ import annotations

import hashlib
import threading
from collections import Counter, OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from ...types import Bucket, CachedSample, View
from ..paces import pace_marks
from .cache_file import Entry, read_entry

_MEMORY_BYTES = 256 * 1024 * 1024

AS_IT_IS = View()
"""The first caption, with control images, not mirrored."""


@dataclass(frozen=True, slots=True)
class Mirrored:
    """Where the parts of a mirrored sample are kept.

    Attributes:
        latents: Entry of the image.
        layers: Entries of its layers.
        controls: Entries of the control images.
        mask: Entry of the mask.
        texts: Entries of all captions and of the empty one, where the text encoder sees the control
            images; empty where it does not, and texts are those of the image as it is.
    """

    latents: Entry
    layers: tuple[Entry, ...] = ()
    controls: tuple[Entry, ...] = ()
    mask: Entry | None = None
    texts: tuple[Entry, ...] = ()

    @property
    def entries(self) -> tuple[Entry, ...]:
        """All that is kept of it."""
        masks = (self.mask,) if self.mask else ()
        return (self.latents, *self.layers, *self.controls, *masks, *self.texts)


@dataclass(frozen=True, slots=True)
class CachedItem:
    """Where the parts of one sample are kept.

    Attributes:
        name: As in `Sample`.
        bucket: Size in pixels.
        control_buckets: Sizes of the control images.
        latents: Entry of the image.
        controls: Entries of the control images.
        text: Entry of the caption.
        empty_text: Entry of the empty caption.
        regularization: As in `Sample`.
        source: Hash of image, size and caption alone, which is the same in every precision of
            the encoders; empty where a list of an older version does not know it.
        layers: Entries of the layers that it is made of, from the lowest to the topmost.
        more_texts: Entries of its further captions.
        bare_texts: Entries of all captions and of the empty one, in this order, as the text encoder
            reads them without the control images; empty where control images are never left out,
            or the text encoder does not see them.
        mask: Entry of its mask, None where it has none.
        flipped: The same of the mirrored image; None where it is never mirrored.
        validation: As in `Sample`.
        folder: As in `Sample`.
        repeats: As in `Sample`.
        weight: As in `Sample`.
    """

    name: str
    bucket: Bucket
    control_buckets: tuple[Bucket, ...]
    latents: Entry
    controls: tuple[Entry, ...]
    text: Entry
    empty_text: Entry
    regularization: bool = False
    source: str = ""
    layers: tuple[Entry, ...] = ()
    more_texts: tuple[Entry, ...] = ()
    bare_texts: tuple[Entry, ...] = ()
    mask: Entry | None = None
    flipped: Mirrored | None = None
    validation: bool = False
    folder: int = 0
    repeats: int = 1
    weight: float = 1.0

    @property
    def entries(self) -> tuple[Entry, ...]:
        """All that is kept of it."""
        own = (self.latents, *self.layers, *self.controls, *((self.mask,) if self.mask else ()))
        texts = (self.text, *self.more_texts, self.empty_text, *self.bare_texts)
        return (*own, *texts, *(self.flipped.entries if self.flipped else ()))

    @property
    def captions(self) -> int:
        """How many texts it has, beside the empty one."""
        return 1 + len(self.more_texts)

    def text_of(self, view: View) -> Entry:
        """The entry of the text that a view is trained with."""
        place = self.captions if view.caption is None else view.caption
        if not view.controls and self.bare_texts:
            return self.bare_texts[place]
        if view.flipped and self.flipped is not None and self.flipped.texts:
            return self.flipped.texts[place]
        return (self.text, *self.more_texts, self.empty_text)[place]

    @property
    def kind(self) -> tuple[tuple[Bucket, ...], int]:
        """What the samples of a batch agree in, beside their size."""
        return self.control_buckets, len(self.layers)


@dataclass(frozen=True, slots=True)
class PreservedItem:
    """A prompt that the base is held to, encoded.

    Attributes:
        prompt: Its text.
        bucket: Size in pixels of the image that the base makes of it.
        controls: Entries of the control images that it is given.
        text: Entry of the encoded prompt.
        layers: How many the base makes of it.
    """

    prompt: str
    bucket: Bucket
    controls: tuple[Entry, ...]
    text: Entry
    layers: int = 0


class CachedDataset:
    """All samples, encoded; read from disk when asked for and kept in memory for a while.

    Safe to read from several threads.

    Args:
        items: One per sample.
        encoded: Number of files that were encoded to make it.
        reused: Number of files that were there already.
        problems: What was left out while encoding, in words.
        memory_bytes: How much may be kept in memory.
        preserved: What the base is held to.
    """

    def __init__(
        self,
        items: Sequence[CachedItem],
        encoded: int = 0,
        reused: int = 0,
        problems: Sequence[str] = (),
        memory_bytes: int = _MEMORY_BYTES,
        preserved: Sequence[PreservedItem] = (),
    ) -> None:
        self.items = tuple(items)
        self.preserved = tuple(preserved)
        self.encoded = encoded
        self.reused = reused
        self.problems = tuple(problems)
        self.memory = EntryMemory(memory_bytes)

    def __len__(self) -> int:
        return len(self.items)

    @property
    def identity(self) -> str:
        """Hash of all that is trained: images, captions, sizes, encoders, and their order."""
        keys: list[str] = []
        for item in self.items:
            keys += pace_marks(item)
            keys += [entry.key for entry in item.entries]
        keys += [e.key for item in self.preserved for e in (*item.controls, item.text)]
        return hashlib.sha256("\n".join(keys).encode()).hexdigest()

    @property
    def source(self) -> str | None:
        """Hash of images, captions, sizes and their order, however precisely they are encoded.

        None where it is not known.
        """
        if not all(item.source for item in self.items):
            return None
        sources = [
            " ".join([item.source, str(item.regularization), *more])
            for item in self.items
            # An ordinary image is marked as one already, as lists of older versions were.
            for more in [[mark for mark in pace_marks(item) if mark != "regularization"]]
        ]
        sources += [f"{item.prompt!r} {item.bucket}" for item in self.preserved]
        return hashlib.sha256("\n".join(sources).encode()).hexdigest()

    @property
    def usual_layers(self) -> int:
        """How many layers most samples have, of equally many the more."""
        counts = Counter(len(item.layers) for item in self.items)
        return max(counts, key=lambda layers: (counts[layers], layers))

    @property
    def names(self) -> tuple[str, ...]:
        """The samples' names."""
        return tuple(item.name for item in self.items)

    @property
    def own_images(self) -> int:
        """Number of images that are trained and are no regularization images.

        One that is trained at several sizes counts once.
        """
        own = {item.name for item in self.items if not (item.regularization or item.validation)}
        return len(own)

    @property
    def buckets(self) -> tuple[Bucket, ...]:
        """The samples' sizes in pixels."""
        return tuple(item.bucket for item in self.items)

    @property
    def control_buckets(self) -> tuple[tuple[Bucket, ...], ...]:
        """The sizes of each sample's control images."""
        return tuple(item.control_buckets for item in self.items)

    @property
    def kinds(self) -> tuple[tuple[tuple[Bucket, ...], int], ...]:
        """Control images and layers of each sample; what may share a batch agrees in them."""
        return tuple(item.kind for item in self.items)

    def load(self, index: int, view: View = AS_IT_IS) -> CachedSample:
        """Read what a view of one sample needs, and no more.

        Args:
            index: 0 to `len` - 1.
            view: What of it is trained.

        Returns:
            Its tensors in float32 on the CPU. They are shared with later calls: not to be changed
            in place.

        Raises:
            StorageError: When a file was damaged or removed since the cache was built.
        """
        item = self.items[index]
        side = item.flipped if view.flipped and item.flipped is not None else item
        frames = [self.memory.read(each)["latents"] for each in (side.latents, *side.layers)]
        controls = side.controls if view.controls else ()
        return CachedSample(
            name=item.name,
            bucket=item.bucket,
            latents=torch.stack(frames, dim=1) if item.layers else frames[0],
            controls=tuple(self.memory.read(entry)["latents"] for entry in controls),
            conditioning=self.memory.read(item.text_of(view)),
            regularization=item.regularization,
            mask=self.memory.read(side.mask)["mask"] if side.mask is not None else None,
        )


class EntryMemory:
    """Entries that were read last, up to a number of bytes.

    Args:
        limit: Bytes that may be kept.
    """

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._size = 0
        self._kept: OrderedDict[str, dict[str, Tensor]] = OrderedDict()
        self._lock = threading.Lock()

    def read(self, entry: Entry) -> dict[str, Tensor]:
        """Read an entry as `read_entry` does; its tensors are not to be changed in place.

        Raises:
            StorageError: When the file is damaged or gone.
        """
        with self._lock:
            kept = self._kept.get(entry.key)
            if kept is not None:
                self._kept.move_to_end(entry.key)
                return dict(kept)
        tensors = read_entry(entry)
        with self._lock:
            if entry.key not in self._kept:
                self._kept[entry.key] = tensors
                self._size += _bytes(tensors)
            while self._size > self._limit and self._kept:
                _, oldest = self._kept.popitem(last=False)
                self._size -= _bytes(oldest)
        return dict(tensors)


def _bytes(tensors: dict[str, Tensor]) -> int:
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors.values())
