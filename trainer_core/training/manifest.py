"""A finished cache: a list of encoded samples and prompts, trained without images and encoders.

The list lies in the cache's folder and names files by their keys alone, so that the folder can be
moved to another machine. It holds the samples' names and the preview prompts, but no paths.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..data.cache_file import Entry, entry_of_key, is_sound
from ..data.cached_dataset import CachedDataset, CachedItem, PreservedItem
from ..errors import DatasetError
from ..filesystem.storage import write_json
from ..filesystem.text_files import LARGEST_LIST, read_object
from ..inference.encoded_prompts import EncodedPrompt, read_prompt
from ..types import Bucket

SUFFIX = ".cache.json"
_FORMAT = 1


@dataclass(frozen=True, slots=True)
class Manifest:
    """What a run needs of its samples.

    Attributes:
        family: The base's family.
        variant: What the samples were encoded for, such as ``edit``.
        dataset: The encoded samples.
        prompts: The encoded preview prompts.
    """

    family: str
    variant: str
    dataset: CachedDataset
    prompts: tuple[EncodedPrompt, ...]

    def entries(self) -> Iterator[Entry]:
        """Every file of the cache that the run reads."""
        yield from _entries(self.dataset.items)
        yield from (prompt.entry for prompt in self.prompts)
        for each in self.dataset.preserved:
            yield from (*each.controls, each.text)


def write_manifest(path: Path, cache: Manifest) -> None:
    """Write the list.

    Args:
        path: A file in the cache's folder, ending in `SUFFIX`.
        cache: What is encoded there.

    Raises:
        StorageError: When it cannot be written.
    """
    write_json(
        path,
        {
            "format": _FORMAT,
            "family": cache.family,
            "variant": cache.variant,
            "samples": [_sample_record(item) for item in cache.dataset.items],
            "prompts": [
                {"text": p.text, "key": p.entry.key, "controls": len(p.controls)}
                for p in cache.prompts
            ],
            "preserved": [_preserved_record(item) for item in cache.dataset.preserved],
        },
    )


def read_manifest(path: Path) -> Manifest:
    """Read the list and check that every file it names is there.

    Args:
        path: The list.

    Returns:
        The cache.

    Raises:
        DatasetError: When the list is damaged or of a newer version, or files are missing.
    """
    record = read_object(path, lambda reason: _unusable(path, reason), LARGEST_LIST)
    try:
        if record["format"] != _FORMAT:
            raise ValueError(f"its format is {record['format']!r}")
        items = [_sample_item(path.parent, sample) for sample in record["samples"]]
        prompts = [_prompt(path.parent, prompt) for prompt in record["prompts"]]
        # Lists of earlier versions have none.
        preserved = [_preserved_item(path.parent, each) for each in record.get("preserved", [])]
        family, variant = str(record["family"]), str(record["variant"])
    except (ValueError, KeyError, TypeError) as error:
        raise _unusable(path, f"{type(error).__name__}: {error}") from error
    if not items:
        raise _unusable(path, "it lists no samples")
    kept = [entry for item in preserved for entry in (*item.controls, item.text)]
    _require_files(path, [*_entries(items), *(entry for _, entry, _ in prompts), *kept])
    read = tuple(read_prompt(text, entry, count) for text, entry, count in prompts)
    return Manifest(family, variant, CachedDataset(items, preserved=preserved), read)


def _sample_record(item: CachedItem) -> dict[str, Any]:
    return {
        "name": item.name,
        "size": [item.bucket.width, item.bucket.height],
        "latents": item.latents.key,
        "text": item.text.key,
        "empty_text": item.empty_text.key,
        "source": item.source,
        "controls": [
            {"size": [bucket.width, bucket.height], "latents": entry.key}
            for bucket, entry in zip(item.control_buckets, item.controls, strict=True)
        ],
        **({"regularization": True} if item.regularization else {}),
    }


def _preserved_record(item: PreservedItem) -> dict[str, Any]:
    return {
        "prompt": item.prompt,
        "size": [item.bucket.width, item.bucket.height],
        "controls": [entry.key for entry in item.controls],
        "text": item.text.key,
    }


def _preserved_item(folder: Path, record: Mapping[str, Any]) -> PreservedItem:
    return PreservedItem(
        prompt=str(record["prompt"]),
        bucket=_bucket(record["size"]),
        controls=tuple(entry_of_key(folder, "latents", key) for key in record["controls"]),
        text=entry_of_key(folder, "text", record["text"]),
    )


def _sample_item(folder: Path, record: Mapping[str, Any]) -> CachedItem:
    controls = record["controls"]
    return CachedItem(
        name=str(record["name"]),
        bucket=_bucket(record["size"]),
        control_buckets=tuple(_bucket(control["size"]) for control in controls),
        latents=entry_of_key(folder, "latents", record["latents"]),
        controls=tuple(entry_of_key(folder, "latents", c["latents"]) for c in controls),
        text=entry_of_key(folder, "text", record["text"]),
        empty_text=entry_of_key(folder, "text", record["empty_text"]),
        regularization=bool(record.get("regularization", False)),
        source=str(record.get("source", "")),
    )


def _prompt(folder: Path, record: Mapping[str, Any]) -> tuple[str, Entry, int]:
    entry = entry_of_key(folder, "prompts", record["key"])
    return str(record["text"]), entry, int(record["controls"])


def _bucket(size: Sequence[int]) -> Bucket:
    width, height = size
    return Bucket(int(width), int(height))


def _entries(items: Sequence[CachedItem]) -> list[Entry]:
    return [e for i in items for e in (i.latents, *i.controls, i.text, i.empty_text)]


def _require_files(path: Path, entries: Sequence[Entry]) -> None:
    missing = [entry for entry in entries if not is_sound(entry)]
    if missing:
        raise _unusable(path, f"{len(missing)} of its files are missing or damaged")


def _unusable(path: Path, reason: str) -> DatasetError:
    return DatasetError(
        f"cache.manifest: {path} cannot be used ({reason})",
        "the list of a finished cache, with the folders latents, text and prompts beside it",
        "Copy the whole cache folder, or make it again (Cache Embeddings with verify switched on, "
        "or the verb cache with cache.verify=true).",
    )
