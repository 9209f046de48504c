"""Bad input of the cache: damaged lists of finished caches, encoders' numbers, folders."""

import json
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from tests.fixtures.bad_input import BadInput, Outcome, error, write_pair
from tests.fixtures.cache_world import TinyEncoders
from trainer_core.config import DatasetSection
from trainer_core.data.buckets import plan_buckets
from trainer_core.data.cache.build_cache import build_cache
from trainer_core.data.cache.cached_dataset import CachedDataset
from trainer_core.data.cache.entry_keys import EntryKeys
from trainer_core.data.file_memory import FileMemory
from trainer_core.data.sources.scan_dataset import scan_all
from trainer_core.training.prepare.cache_manifest import Manifest, read_manifest, write_manifest

_Change = Callable[[dict[str, Any]], object]


def _settings(folder: Path) -> DatasetSection:
    data = folder / "data"
    data.mkdir(exist_ok=True)
    write_pair(data / "a.png", "one")
    write_pair(data / "b.png", "two")
    return DatasetSection(path=str(data), resolution=64)


def _built(settings: DatasetSection, cache: str = "cache") -> CachedDataset:
    found = scan_all(settings)
    plan = plan_buckets(found.samples, settings, 16, lambda width, height, area: (32, 32))
    folder = Path(settings.path).parent / cache
    keys = EntryKeys(folder, "tiny", settings, FileMemory(folder))
    return build_cache(keys, plan, TinyEncoders().open)


def _long_name(settings: DatasetSection) -> Outcome:
    return Outcome(_built(settings, "x" * 300).problems)


def _listed(folder: Path, change: _Change) -> Path:
    """A finished cache with its list, which was changed by hand."""
    dataset = _built(_settings(folder))
    path = folder / "cache" / "run-0.cache.json"
    write_manifest(path, Manifest("qwen_image", "generate", dataset, ()))
    record = json.loads(path.read_text())
    change(record)
    path.write_text(json.dumps(record))
    return path


def _read(path: Path) -> Outcome:
    return Outcome([str(read_manifest(path).family)])


def _in(*place: str | int, to: Any) -> _Change:
    def change(record: dict[str, Any]) -> None:
        inner: Any = record
        for name in place[:-1]:
            inner = inner[name]
        inner[place[-1]] = to

    return change


def _list(id: str, change: _Change, told: str = "") -> BadInput:
    make = partial(_listed, change=change)
    return error(id, make, f"cannot be used ... {told}", run=_read, complete=False)


def _missing(folder: Path) -> Path:
    path = _listed(folder, lambda record: None)
    next((folder / "cache" / "latents").glob("*.safetensors")).unlink()
    return path


def _cut(folder: Path) -> Path:
    path = _listed(folder, lambda record: None)
    path.write_text(path.read_text()[:-100])
    return path


_FORM = ("samples", "forms", 0)

CASES = [
    _list("list-of-no-format", lambda record: record.pop("format"), "format"),
    _list("list-of-a-newer-version", _in("format", to=99), "99"),
    _list("list-without-samples", lambda record: record.pop("samples")),
    _list("list-of-other-samples", _in("samples", to=["a.png"])),
    _list("list-with-keys-that-are-none", _in("samples", "keys", to="../../../etc/passwd")),
    _list("list-with-half-a-key", _in("samples", "keys", to="ab" * 31)),
    _list("list-that-leads-out", _in("samples", "kinds", to=["../..", "text"]), "kinds"),
    _list("list-with-a-key-too-many", _in("samples", "refs", 0, to=10**6)),
    _list("list-with-a-negative-place", _in("samples", "refs", 0, to=-1)),
    _list("list-with-an-unknown-form", _in("samples", "form_of", 0, to=9)),
    _list("list-with-half-a-size", _in(*_FORM, "size", to=[64])),
    _list("list-with-negative-counts", _in(*_FORM, "counts", to=[-1] + [0] * 9)),
    _list("list-with-two-masks", _in(*_FORM, "counts", to=[0, 0, 2] + [0] * 7)),
    _list("list-with-endless-counts", _in(*_FORM, "counts", to=[0, 0, 0, 2**62] + [0] * 6)),
    _list("list-with-a-size-of-nothing", _in(*_FORM, "size", to=[0, 64]), "0 x 64"),
    _list("list-with-an-endless-size", _in(*_FORM, "size", to=[10**9, 10**9]), "pixels"),
    _list("list-with-a-negative-folder", _in(*_FORM, "folder", to=-1)),
    _list("list-with-no-repeats", _in("samples", "repeats", 0, to=0), "never repeated"),
    _list("list-with-a-negative-weight", _in("samples", "weights", 0, to=-1.0), "weight"),
    _list("list-with-a-name-that-is-none", _in("samples", "names", 0, to=7)),
    _list("list-with-a-short-column", _in("samples", "weights", to=[1.0]), "one length"),
    error("list-cut-short", _cut, "cannot be used", run=_read, complete=False),
    error("list-lacks-a-file", _missing, "1 of its files", run=_read, complete=False),
    error("cache-name-too-long", _settings, "cannot be written", run=_long_name, complete=False),
]
