"""The samples of a cache as columns of numbers: some 170 bytes each, and fast to ask about.

A sample's entries are numbers of rows in one table of keys, in which each key stands once. What
few samples differ in, such as their size, stands once as a form.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, overload

import numpy as np
from numpy.typing import NDArray

from ...types import Bucket
from ..repeats_and_weights import Pace
from .cache_file import Entry
from .cached_item import CachedItem, ItemKind, Mirrored


@dataclass(frozen=True, slots=True)
class Form:
    """What many samples have in common, as in `CachedItem`.

    Attributes:
        counts: How many entries it has: layers, control images, masks (0 or 1), further texts, bare
            texts; mirrored: images (0 or 1), layers, control images, masks, texts; texts with the
            class word; and sounds (0 or 1).
    """

    bucket: Bucket
    control_buckets: tuple[Bucket, ...]
    regularization: bool
    validation: bool
    folder: int
    counts: tuple[int, ...]
    sourced: bool

    @property
    def entries(self) -> int:
        """How many entries a sample of this form has: an image and two texts at least."""
        return 3 + sum(self.counts)

    @property
    def text(self) -> int:
        """Place of the caption among them."""
        return 1 + sum(self.counts[:3])

    @property
    def kind(self) -> ItemKind:
        """As `CachedItem.kind`."""
        return self.control_buckets, self.counts[0], self.has_sound

    @property
    def class_texts(self) -> int:
        """How many texts have the class word."""
        return self.counts[10]

    @property
    def has_sound(self) -> bool:
        """Whether it has an entry of sound."""
        return self.counts[11] > 0


def form_of(item: CachedItem) -> Form:
    """The form of a sample."""
    side = item.flipped
    counts = (
        *(len(item.layers), len(item.controls), int(item.mask is not None)),
        *(len(item.more_texts), len(item.bare_texts)),
        *((1, len(side.layers), len(side.controls)) if side else (0, 0, 0)),
        *((int(side.mask is not None), len(side.texts)) if side else (0, 0)),
        *(len(item.class_texts), int(item.sound is not None)),
    )
    return Form(
        *(item.bucket, item.control_buckets, item.regularization, item.validation),
        *(item.folder, counts, bool(item.source)),
    )


class ItemColumns(Sequence[CachedItem]):
    """Samples, made when they are asked for.

    Attributes:
        places: Folders of entries: the cache folder, and the folder in it.
        keys: `[K, 32]`, the key of each entry.
        place_of: `[K]`, in which of `places` it is.
        tokens: `[K]`, text tokens of each entry; 0 where it is not text, or not known.
        refs: Entries of all samples one after the other, as rows of `keys`.
        starts: `[N + 1]`, where each sample's begin.
        form_of: `[N]`.
        repeats: `[N]`.
        weights: `[N]`.
        sources: `[N, 32]`.
    """

    def __init__(self, parts: dict[str, Any]) -> None:
        self.places: tuple[tuple[Path, str], ...] = tuple(parts["places"])
        self.keys: NDArray[np.uint8] = parts["keys"]
        self.place_of: NDArray[np.uint8] = parts["place_of"]
        self.tokens: NDArray[np.int32] = parts["tokens"]
        self.refs: NDArray[np.uint32] = parts["refs"]
        self.forms: tuple[Form, ...] = tuple(parts["forms"])
        self.form_of: NDArray[np.uint32] = parts["form_of"]
        self.repeats: NDArray[np.uint32] = parts["repeats"]
        self.weights: NDArray[np.float64] = parts["weights"]
        self.sources: NDArray[np.uint8] = parts["sources"]
        self._names: bytes = parts["names"]
        self._name_ends: NDArray[np.uint32] = parts["name_ends"]
        counts = np.array([form.entries for form in self.forms], np.uint32)
        self.starts = np.zeros(len(self.form_of) + 1, np.uint32)
        np.cumsum(counts[self.form_of], out=self.starts[1:])

    @staticmethod
    def of(items: Iterable[CachedItem]) -> ItemColumns:
        """The columns of some samples."""
        writer = ColumnWriter()
        for item in items:
            writer.add(item)
        return writer.columns()

    def __len__(self) -> int:
        return len(self.form_of)

    @overload
    def __getitem__(self, index: int) -> CachedItem: ...
    @overload
    def __getitem__(self, index: slice) -> tuple[CachedItem, ...]: ...
    def __getitem__(self, index: int | slice) -> CachedItem | tuple[CachedItem, ...]:
        if isinstance(index, slice):
            return tuple(self[each] for each in range(*index.indices(len(self))))
        at = range(len(self))[index]
        form = self.forms[self.form_of[at]]
        refs = self.refs[self.starts[at] : self.starts[at + 1]]
        keys, places = self.keys[refs].tobytes().hex(), self.place_of[refs].tolist()
        entries = iter(
            _entry(self.places[place], keys[64 * n : 64 * n + 64]) for n, place in enumerate(places)
        )
        source = self.sources[at].tobytes().hex() if form.sourced else ""
        return _item(
            form,
            entries,
            self.name(at),
            source=source,
            repeats=self.repeats[at],
            weight=self.weights[at],
        )

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Sequence) and tuple(self) == tuple(other)

    __hash__ = None  # type: ignore[assignment]

    def name(self, at: int) -> str:
        """The name of a sample, from 0."""
        start = int(self._name_ends[at - 1]) if at else 0
        content = self._names[start : self._name_ends[at]]
        return content.decode("utf-8", "surrogatepass")

    @property
    def names(self) -> tuple[str, ...]:
        """The names of all."""
        return tuple(self.name(at) for at in range(len(self)))

    def each(self, values: Sequence[Any]) -> tuple[Any, ...]:
        """For each sample what stands for its form, of one value for each of `forms`."""
        return tuple(map(values.__getitem__, self.form_of.tolist()))

    @property
    def text_tokens(self) -> NDArray[np.int32]:
        """`[N]`: tokens of each sample's first caption, 0 where not known."""
        places = np.array([form.text for form in self.forms], np.uint32)
        return self.tokens[self.refs[self.starts[:-1] + places[self.form_of]]]

    def entry(self, row: int) -> Entry:
        """The entry of a row of `keys`."""
        return _entry(self.places[self.place_of[row]], self.keys[row].tobytes().hex())

    def chunks(self, size: int = 4096) -> Iterator[list[list[str]]]:
        """The keys of the samples' entries, for many samples at a time."""
        for first in range(0, len(self), size):
            starts = self.starts[first : first + size + 1].tolist()
            text = self.keys[self.refs[starts[0] : starts[-1]]].tobytes().hex()
            cut = [text[at : at + 64] for at in range(0, len(text), 64)]
            yield [cut[a - starts[0] : b - starts[0]] for a, b in itertools.pairwise(starts)]

    def paces(self) -> Iterator[Pace]:
        """How often each is trained, and how much it counts, without making a sample of it."""
        known = [(form.regularization, form.validation, form.folder) for form in self.forms]
        columns = (self.each(known), self.repeats.tolist(), self.weights.tolist())
        return (Pace(*own, *rest) for own, *rest in zip(*columns, strict=True))

    def having(self, rows: NDArray[np.bool_]) -> NDArray[np.int64]:
        """The samples with an entry among some of `keys`."""
        places = np.nonzero(rows[self.refs])[0]
        return np.unique(np.searchsorted(self.starts, places, side="right") - 1)

    def masked(self, numbers: Iterable[int]) -> list[int]:
        """Those of some samples that have a mask."""
        having = np.array([form.counts[2] > 0 for form in self.forms], bool)
        return [number for number in numbers if having[self.form_of[number]]]

    def without(self, left_out: set[int]) -> ItemColumns:
        """The same without some samples."""
        if not left_out:
            return self
        kept = ItemColumns.of(item for at, item in enumerate(self) if at not in left_out)
        known = {self.entry(row).key: int(self.tokens[row]) for row in range(len(self.keys))}
        kept.tokens[:] = [known[kept.entry(row).key] for row in range(len(kept.keys))]
        return kept


def _entry(place: tuple[Path, str], key: str) -> Entry:
    folder, kind = place
    return Entry(folder, kind, key)


def _item(
    form: Form, entries: Iterator[Entry], name: str, source: str, repeats: Any, weight: Any
) -> CachedItem:
    layers, controls, masks, more, bare, mirrored, *of_mirrored, classed, sounds = form.counts

    def take(count: int) -> tuple[Entry, ...]:
        return tuple(next(entries) for _ in range(count))

    latents, own_layers, own_controls = next(entries), take(layers), take(controls)
    mask = next(entries) if masks else None
    text, more_texts, empty, bare_texts = next(entries), take(more), next(entries), take(bare)
    flipped = None
    if mirrored:
        side = next(entries), take(of_mirrored[0]), take(of_mirrored[1])
        side_mask = next(entries) if of_mirrored[2] else None
        flipped = Mirrored(*side, side_mask, take(of_mirrored[3]))
    return CachedItem(
        *(name, form.bucket, form.control_buckets, latents, own_controls, text, empty),
        *(form.regularization, source, own_layers, more_texts, bare_texts, mask, flipped),
        *(form.validation, form.folder, int(repeats), float(weight), take(classed)),
        next(entries) if sounds else None,
    )


class ColumnWriter:
    """Makes columns of samples that come one by one."""

    def __init__(self) -> None:
        self._rows: dict[str, int] = {}
        self._places: dict[tuple[Path, str], int] = {}
        self._place_of: list[int] = []
        self._refs: list[int] = []
        self._forms: dict[Form, int] = {}
        self._samples: list[tuple[int, int, float]] = []
        self._sources: list[str] = []
        self._names: list[bytes] = []

    def __len__(self) -> int:
        return len(self._samples)

    def add(self, item: CachedItem) -> None:
        """Add a sample."""
        for entry in item.entries:
            row = self._rows.setdefault(entry.key, len(self._rows))
            if row == len(self._place_of):
                place = (entry.folder, entry.kind)
                self._place_of.append(self._places.setdefault(place, len(self._places)))
            self._refs.append(row)
        form = form_of(item)
        number = self._forms.setdefault(form, len(self._forms))
        self._samples.append((number, item.repeats, item.weight))
        self._sources.append(item.source or "0" * 64)
        self._names.append(item.name.encode("utf-8", "surrogatepass"))

    def columns(self) -> ItemColumns:
        """The columns of all that were added."""
        count = len(self._samples)
        forms, repeats, weights = zip(*self._samples, strict=True) if count else ((), (), ())
        return ItemColumns(
            {
                "places": list(self._places),
                "keys": hex_keys(self._rows),
                "place_of": np.array(self._place_of, np.uint8),
                "tokens": np.zeros(len(self._rows), np.int32),
                "refs": np.array(self._refs, np.uint32),
                "forms": list(self._forms),
                "form_of": np.array(forms, np.uint32),
                "repeats": np.array(repeats, np.uint32),
                "weights": np.array(weights, np.float64),
                "sources": hex_keys(self._sources),
                "names": b"".join(self._names),
                "name_ends": np.cumsum([len(each) for each in self._names], dtype=np.uint32),
            }
        )


def hex_keys(keys: Iterable[str]) -> NDArray[np.uint8]:
    """Keys of 64 hexadecimal digits as `[N, 32]`.

    Raises:
        ValueError: When one is no such key.
    """
    return np.frombuffer(bytes.fromhex("".join(keys)), np.uint8).reshape(-1, 32)
