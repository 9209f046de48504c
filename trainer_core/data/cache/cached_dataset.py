"""The encoded dataset, read from the cache."""

from __future__ import annotations

import hashlib
import threading
from collections import Counter, OrderedDict
from collections.abc import Callable, Sequence
from functools import lru_cache

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ...types import Bucket, CachedSample, View
from ..repeats_and_weights import Pace, pace_marks
from .cache_file import Entry, read_entry
from .cached_item import CachedItem, ItemKind, PreservedItem
from .item_columns import ItemColumns
from .remove_unused import UseMark

_LINE = "\n"
_MEMORY_BYTES = 256 * 1024 * 1024

AS_IT_IS = View()
"""The first caption, with control images, not mirrored."""


class CachedDataset:
    """All samples, encoded; read from disk when asked for and kept in memory for a while.

    Safe to read from several threads.

    Args:
        encoded: Number of files that were encoded to make it.
        reused: Number of files that were there already.
        problems: What was left out while encoding, in words.

    Attributes:
        damaged: Files that were damaged and were encoded again, in words.
        mark: Keeps other processes from removing its files.
        class_word: What stands for the trigger word in `CachedItem.class_texts`; empty where there
            are none.
        slider: The prompts of a concept slider, as `slider_dataset.slider_mark` writes them; empty
            where images of a folder are trained. Its items have no images of their own.
        made: The latents of an item's image that the base made, `[C, h, w]`, float32; None where
            images come from files, and until they are made.
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
        self.items = items if isinstance(items, ItemColumns) else ItemColumns.of(items)
        self.preserved = tuple(preserved)
        self.encoded = encoded
        self.reused = reused
        self.problems = tuple(problems)
        self.memory = EntryMemory(memory_bytes)
        self.damaged: tuple[str, ...] = ()
        self.mark: UseMark | None = None
        self.class_word = ""
        self.slider = ""
        self.made: Callable[[int], Tensor] | None = None

    def __len__(self) -> int:
        return len(self.items)

    @property
    def identity(self) -> str:
        """Hash of all that is trained: images, captions, sizes, encoders, and their order."""
        digest, joint = hashlib.sha256(), ""
        marks = [_marks(pace) for pace in self.items.paces()]
        at = 0
        for chunk in self.items.chunks():
            keys: list[str] = []
            for number, own in enumerate(chunk, at):
                keys += marks[number]
                keys += own
            at += len(chunk)
            digest.update(f"{joint}{_LINE.join(keys)}".encode())
            joint = _LINE
        kept = [e.key for item in self.preserved for e in (*item.controls, item.text)]
        digest.update("".join(f"{_LINE if self.items else ''}{key}" for key in kept).encode())
        return digest.hexdigest()

    @property
    def source(self) -> str | None:
        """Hash of images, captions, sizes and their order, however precisely they are encoded.

        None where it is not known.
        """
        if not all(form.sourced for form in self.items.forms):
            return None
        text, paces = self.items.sources.tobytes().hex(), self.items.paces()
        sources = [
            f"{text[64 * n : 64 * n + 64]} {' '.join([str(pace.regularization), *more])}"
            for n, pace in enumerate(paces)
            # An ordinary image is marked as one already, as lists of older versions were.
            for more in [[mark for mark in _marks(pace) if mark != "regularization"]]
        ]
        sources += [f"{item.prompt!r} {item.bucket}" for item in self.preserved]
        return hashlib.sha256("\n".join(sources).encode()).hexdigest()

    @property
    def usual_layers(self) -> int:
        """How many layers most samples have, of equally many the more."""
        counts = Counter(self.items.each([form.counts[0] for form in self.items.forms]))
        return max(counts, key=lambda layers: (counts[layers], layers))

    @property
    def usual_frames(self) -> int:
        """How many frames most clips have, of equally many the more; 1 without clips."""
        counts = Counter(each.frames for each in self.buckets if each.frames > 1)
        return max(counts, key=lambda frames: (counts[frames], frames), default=1)

    @property
    def names(self) -> tuple[str, ...]:
        """The samples' names."""
        return self.items.names

    @property
    def own_images(self) -> int:
        """Number of images that are trained and are not regularization images.

        One that is trained at several sizes counts once.
        """
        forms = self.items.forms
        own = self.items.each([not (each.regularization or each.validation) for each in forms])
        return len({self.items.name(at) for at, counts in enumerate(own) if counts})

    @property
    def validations(self) -> tuple[bool, ...]:
        """Of each sample, whether it is held out."""
        return self.items.each([form.validation for form in self.items.forms])

    @property
    def folders(self) -> tuple[int, ...]:
        """Of each sample, in which of `config.dataset_folders` it lies."""
        return self.items.each([form.folder for form in self.items.forms])

    @property
    def repeats(self) -> NDArray[np.uint32]:
        """`[N]`: how often each sample appears in an epoch, times its folder's number."""
        return self.items.repeats

    @property
    def weights(self) -> NDArray[np.float64]:
        """`[N]`: factor on each sample's loss, times its folder's."""
        return self.items.weights

    @property
    def text_tokens(self) -> NDArray[np.int32]:
        """`[N]`: tokens of each sample's first caption; 0 where that is not known."""
        return self.items.text_tokens

    @property
    def buckets(self) -> tuple[Bucket, ...]:
        """The samples' sizes in pixels."""
        return self.items.each([form.bucket for form in self.items.forms])

    @property
    def control_buckets(self) -> tuple[tuple[Bucket, ...], ...]:
        """The sizes of each sample's control images."""
        return self.items.each([form.control_buckets for form in self.items.forms])

    @property
    def kinds(self) -> tuple[ItemKind, ...]:
        """What each sample has beside its image; what may share a batch agrees in it."""
        return self.items.each([form.kind for form in self.items.forms])

    def load(self, index: int, view: View = AS_IT_IS) -> CachedSample:
        """Read what a view of one sample needs, and no more.

        Returns:
            Its tensors in float32 on the CPU. They are shared with later calls: not to be changed
            in place.

        Raises:
            StorageError: When a file was damaged or removed since the cache was built.
        """
        item = self.items[index]
        if self.made is not None:
            return self._slider_sample(item, self.made(index))
        side = item.flipped if view.flipped and item.flipped is not None else item
        own, *layers = (self.memory.read(each) for each in (side.latents, *side.layers))
        frames = [each["latents"] for each in (own, *layers)]
        prefix = f"{view.endpoints}."
        endpoints = {name: each for name, each in own.items() if name.startswith(prefix)}
        clean = endpoints.pop(f"{prefix}clean", None)
        controls = side.controls if view.controls else ()
        return CachedSample(
            name=item.name,
            bucket=item.bucket,
            latents=torch.stack(frames, dim=1) if item.layers else frames[0],
            controls=tuple(self.memory.read(entry)["latents"] for entry in controls),
            conditioning=self.memory.read(item.text_of(view)) | endpoints,
            regularization=item.regularization,
            mask=self.memory.read(side.mask)["mask"] if side.mask is not None else None,
            clean=clean,
            sound=self.memory.read(item.sound)["latents"] if item.sound is not None else None,
        )

    def _slider_sample(self, item: CachedItem, latents: Tensor) -> CachedSample:
        positive, negative = (self.memory.read(entry) for entry in item.class_texts)
        text = self.memory.read(item.text)
        return CachedSample(
            item.name,
            item.bucket,
            latents,
            controls=(),
            conditioning=text,
            direction=(positive, negative),
        )


class EntryMemory:
    """Entries that were read last, up to a number of bytes."""

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


@lru_cache(maxsize=1024)
def _marks(pace: Pace) -> list[str]:
    """What is a part of the identity beside keys; few samples have a pace of their own."""
    return pace_marks(pace)


def _bytes(tensors: dict[str, Tensor]) -> int:
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors.values())
