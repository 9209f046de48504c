"""The manifest of a finished cache, with which a run needs no images and no text encoders.

It lies in the cache's folder and names files by their keys alone, so that the folder can be moved
to another machine. It holds the samples' names and the preview prompts, but no paths. Samples are
columns of numbers, as in memory.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...data.cache.cache_file import Entry, entry_of_key, is_sound
from ...data.cache.cached_dataset import CachedDataset
from ...data.cache.cached_item import PreservedItem
from ...data.cache.file_index import CacheIndex
from ...data.cache.item_columns import Form, ItemColumns, hex_keys
from ...errors import ConfigError, DatasetError
from ...families.family import Family
from ...filesystem.storage import write_text
from ...filesystem.text_files import LARGEST_LIST, read_object
from ...inference.preview_prompts import EncodedPrompt, read_prompt
from ...tensors.safetensors_reader import open_tensors
from ...types import Bucket

SUFFIX = ".cache.json"
_FORMAT = 2
_KIND = re.compile(r"[a-z_]{1,40}")
_COUNTS, _PLAIN_COUNTS = 12, 10
"""Numbers of a form, and those of a sample without texts with a class word and without sound."""
_MOST = 1000  # texts, layers or control images of a sample
_LONGEST_SIDE = 1 << 17
_PROMPTS_OF_SLIDER = 2
_LEAST = 3  # an image, a caption and the empty caption


@dataclass(frozen=True, slots=True)
class Manifest:
    """What a run needs of its samples.

    Attributes:
        variant: What the samples were encoded for, such as ``edit``.
    """

    family: str
    variant: str
    dataset: CachedDataset
    prompts: tuple[EncodedPrompt, ...]

    def entries(self) -> Iterator[Entry]:
        """Every file of the cache that the run reads."""
        for row in range(len(self.dataset.items.keys)):
            yield self.dataset.items.entry(row)
        yield from (prompt.entry for prompt in self.prompts)
        for each in self.dataset.preserved:
            yield from (*each.controls, each.text)


def check_texts(cache: Manifest, family: Family, *, tokens: bool) -> None:
    """Refuse texts that were encoded for another run: with CLIP-L trained, or without.

    Args:
        cache: The list; the header of one text is read.
        tokens: Whether the denoiser reads the text's tokens.

    Raises:
        ConfigError: When it does and they are not there, or the other way round.
        StorageError: When the file is damaged or gone.
    """
    text = family.text.trainable
    if text is None:
        return
    with open_tensors(cache.dataset.items[0].text.path) as file:
        found = text.tokens in file.tensors
    if found != tokens:
        raise ConfigError(
            f"training.text_encoder.train is {str(tokens).lower()}, and the finished cache was "
            f"encoded with {str(found).lower()}",
            "texts that were encoded for it: their tokens where the text encoder is trained, and "
            "what it makes of them where not",
            f"Encode again with this setting, or set training.text_encoder.train to "
            f"{str(found).lower()}.",
        )


def write_manifest(path: Path, cache: Manifest) -> None:
    """Write the list.

    Args:
        path: A file in the cache's folder, ending in `SUFFIX`.

    Raises:
        StorageError: When it cannot be written.
    """
    record = {
        "format": _FORMAT,
        "family": cache.family,
        "variant": cache.variant,
        "samples": _columns_record(cache.dataset.items),
        "prompts": [
            {"text": p.text, "key": p.entry.key, "controls": len(p.controls)} for p in cache.prompts
        ],
        "preserved": [_preserved_record(item) for item in cache.dataset.preserved],
        **({"class_word": cache.dataset.class_word} if cache.dataset.class_word else {}),
        **({"slider": cache.dataset.slider} if cache.dataset.slider else {}),
    }
    write_text(path, json.dumps(record, allow_nan=False) + "\n")


def read_manifest(path: Path) -> Manifest:
    """Read the list and check that every file it names is there.

    Raises:
        DatasetError: When the list is damaged or of a newer version, or files are missing.
    """
    record = read_object(path, lambda reason: _unusable(path, reason), LARGEST_LIST)
    try:
        if record["format"] != _FORMAT:
            raise ValueError(f"its format is {record['format']!r}")
        items = _items(path.parent, record)
        prompts = [_prompt(path.parent, prompt) for prompt in record["prompts"]]
        preserved = [_preserved_item(path.parent, each) for each in record["preserved"]]
        family, variant = str(record["family"]), str(record["variant"])
        class_word = str(record.get("class_word", ""))
        slider = _slider(record, items)
    except (ValueError, KeyError, TypeError, OverflowError) as error:
        raise _unusable(path, f"{type(error).__name__}: {error}") from error
    if not len(items):
        raise _unusable(path, "it lists no samples")
    kept = [entry for item in preserved for entry in (*item.controls, item.text)]
    _require_files(path, items, [*(entry for _, entry, _ in prompts), *kept])
    read = tuple(read_prompt(text, entry, count) for text, entry, count in prompts)
    dataset = CachedDataset(items, preserved=preserved)
    dataset.class_word, dataset.slider = class_word, slider
    return Manifest(family, variant, dataset, read)


def _slider(record: Mapping[str, Any], items: ItemColumns) -> str:
    slider = str(record.get("slider", ""))
    if slider and any(form.class_texts != _PROMPTS_OF_SLIDER for form in items.forms):
        raise ValueError("a sample of a slider has no positive and negative prompt")
    return slider


def _columns_record(items: ItemColumns) -> dict[str, Any]:
    return {
        "kinds": [kind for _, kind in items.places],
        "keys": items.keys.tobytes().hex(),
        "kind_of": items.place_of.tolist(),
        "refs": items.refs.tolist(),
        "forms": [_form_record(form) for form in items.forms],
        "form_of": items.form_of.tolist(),
        "repeats": items.repeats.tolist(),
        "weights": items.weights.tolist(),
        "sources": items.sources.tobytes().hex(),
        "names": list(items.names),
    }


def _size(bucket: Bucket) -> list[int]:
    return [bucket.width, bucket.height, *([bucket.frames] if bucket.frames > 1 else [])]


def _form_record(form: Form) -> dict[str, Any]:
    return {
        "size": _size(form.bucket),
        "controls": [[bucket.width, bucket.height] for bucket in form.control_buckets],
        "regularization": form.regularization,
        "validation": form.validation,
        "folder": form.folder,
        "counts": list(form.counts if any(form.counts[10:]) else form.counts[:_PLAIN_COUNTS]),
        "sourced": form.sourced,
    }


def _items(folder: Path, record: Mapping[str, Any]) -> ItemColumns:
    samples = record["samples"]
    names = [_text(name).encode("utf-8", "surrogatepass") for name in samples["names"]]
    forms = [_form(each) for each in samples["forms"]]
    kinds = [str(kind) for kind in samples["kinds"]]
    if not all(_KIND.fullmatch(kind) for kind in kinds):
        raise ValueError(f"its kinds are {kinds!r}")
    keys, count = hex_keys([samples["keys"]]), len(names)
    form_of = _numbers(samples["form_of"], count, len(forms))
    entries = np.array([form.entries for form in forms], np.int64)
    refs = _numbers(samples["refs"], int(entries[form_of].sum()), len(keys))
    weights = np.array(samples["weights"], np.float64)
    sources = hex_keys([samples["sources"]])
    repeats = _numbers(samples["repeats"], count, 1 << 31)
    if weights.shape != (count,) or len(sources) != count:
        raise ValueError("its columns are not of one length")
    if not (np.isfinite(weights) & (weights >= 0)).all() or (count and not repeats.min()):
        raise ValueError("a sample has no weight, or is never repeated")
    return ItemColumns(
        {
            "places": [(folder, kind) for kind in kinds],
            "keys": keys,
            "place_of": _numbers(samples["kind_of"], len(keys), len(kinds)).astype(np.uint8),
            "tokens": np.zeros(len(keys), np.int32),
            "refs": refs,
            "forms": forms,
            "form_of": form_of,
            "repeats": repeats,
            "weights": weights,
            "sources": sources,
            "names": b"".join(names),
            "name_ends": np.cumsum([len(name) for name in names], dtype=np.uint32),
        }
    )


def _text(value: object) -> str:
    if not isinstance(value, str):
        raise TypeError(f"{value!r} is not a name")
    return value


def _numbers(values: object, count: int, end: int) -> NDArray[np.uint32]:
    """A column of whole numbers from 0 to before `end`."""
    column = np.array(values, dtype=np.int64)
    if column.shape != (count,) or (count and not 0 <= column.min() <= column.max() < end):
        raise ValueError(f"a column of {len(column)} numbers, for {count} below {end}")
    return column.astype(np.uint32)


def _form(record: Mapping[str, Any]) -> Form:
    counts = tuple(int(count) for count in record["counts"])
    if len(counts) >= _PLAIN_COUNTS:
        counts += (0,) * (_COUNTS - len(counts))
    buckets = tuple(_bucket(size) for size in record["controls"])
    wrong = len(counts) != _COUNTS or min(counts) < 0 or max(counts) > _MOST
    if wrong or counts[1] != len(buckets):
        raise ValueError(f"a form with the counts {counts}")
    several = max(counts[2], counts[5], counts[8], counts[11]) > 1
    if several or (not counts[5] and any(counts[6:10])):
        raise ValueError(f"a form with the counts {counts}")
    flags = bool(record["regularization"]), bool(record["validation"])
    folder = int(record["folder"])
    if folder < 0:
        raise ValueError(f"a form of the folder {folder}")
    return Form(_bucket(record["size"]), buckets, *flags, folder, counts, bool(record["sourced"]))


def _preserved_record(item: PreservedItem) -> dict[str, Any]:
    return {
        "prompt": item.prompt,
        "size": _size(item.bucket),
        "controls": [entry.key for entry in item.controls],
        "text": item.text.key,
        **({"layers": item.layers} if item.layers else {}),
    }


def _preserved_item(folder: Path, record: Mapping[str, Any]) -> PreservedItem:
    return PreservedItem(
        prompt=str(record["prompt"]),
        bucket=_bucket(record["size"]),
        controls=tuple(entry_of_key(folder, "latents", key) for key in record["controls"]),
        text=entry_of_key(folder, "text", record["text"]),
        layers=int(record.get("layers", 0)),
    )


def _prompt(folder: Path, record: Mapping[str, Any]) -> tuple[str, Entry, int]:
    entry = entry_of_key(folder, "prompts", record["key"])
    return str(record["text"]), entry, int(record["controls"])


def _bucket(size: Sequence[int]) -> Bucket:
    width, height, frames = (*map(int, size), 1)[:3]
    if not all(0 < each <= _LONGEST_SIDE for each in (width, height, frames)):
        raise ValueError(f"a size of {width} x {height} pixels and {frames} frames")
    return Bucket(width, height, frames)


def _require_files(path: Path, items: ItemColumns, entries: Sequence[Entry]) -> None:
    kinds = [kind for _, kind in items.places]
    index = CacheIndex(path.parent)
    found = index.look_up(kinds, items.place_of, items.keys, verify=False)
    index.close()
    items.tokens[:] = found.tokens
    missing = int((~found.whole).sum()) + sum(not is_sound(entry) for entry in entries)
    if missing:
        raise _unusable(path, f"{missing} of its files are missing or damaged")


def _unusable(path: Path, reason: str) -> DatasetError:
    return DatasetError(
        f"cache.manifest: {path} cannot be used ({reason})",
        "the list of a finished cache, with the folders latents, text and prompts beside it",
        "Copy the whole cache folder, or make it again (Cache Embeddings with verify switched on, "
        "or the verb cache with cache.verify=true).",
    )
