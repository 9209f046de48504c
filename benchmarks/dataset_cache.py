"""What a large cache costs: to start from it, to hold it in memory, and to load a sample of it.

The files are made without encoders: all of a kind are one file under different keys, as only how
many there are and how large they are matters. Sizes are those of small images, so that 100 000
samples fit on a disk; what a sample costs to load is measured on files of full size.
"""

from __future__ import annotations

import argparse
import contextlib
import gc
import json
import shutil
import statistics
import sys
import tempfile
import time
import tracemalloc
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn

import torch
from PIL import Image
from safetensors.torch import load_file
from torch import Tensor

from benchmarks.measuring.record import RESULTS, origin, write_record
from trainer_core.config import RunConfig
from trainer_core.data.buckets import plan_buckets
from trainer_core.data.cache.cache_file import Entry, make_entry, write_entry
from trainer_core.data.cache.cached_dataset import CachedDataset, CachedItem
from trainer_core.data.cache.columns import ItemColumns
from trainer_core.data.cache.recipes import Recipes
from trainer_core.data.file_memory import FileMemory
from trainer_core.data.sources.combined import scan_all
from trainer_core.training.observer import SilentObserver
from trainer_core.training.prepare.encode_dataset import prepare, save_manifest
from trainer_core.training.step.processes import SingleProcess
from trainer_core.types import Bucket

SIDE = 64
TOKENS = 12
LOADED = 64
AHEAD = 4
_KEY = b"0" * 64


class NoEncoders:
    """Encoders that are not there: whoever needs them would not have started from the cache."""

    identity = "none"
    weighs = False

    def open(self) -> Any:
        """Nobody may want them."""
        raise AssertionError("something was encoded again")

    def decoder(self) -> Callable[[Tensor], Tensor]:
        """Nobody may want it."""
        raise AssertionError("no preview is wanted")

    def text_limit(self) -> None:
        """Captions are short."""

    def join_text(
        self, transformer: object, dtype: object, device: object, at_end: object
    ) -> NoReturn:
        """Nobody may want it."""
        raise AssertionError("no text encoder is trained")

    def close(self) -> None:
        """Nothing was opened."""


def make_dataset(folder: Path, count: int) -> None:
    """Write images and captions, each different."""
    folder.mkdir(parents=True)
    for number in range(count):
        color = (number & 255, number >> 8 & 255, number >> 16 & 255)
        Image.new("RGB", (SIDE, SIDE), color).save(folder / f"{number:07}.png", compress_level=1)
        (folder / f"{number:07}.txt").write_text(f"an image of the number {number}")


def make_cache(config: RunConfig, folder: Path) -> None:
    """Write the files that encoding would have written, unflushed."""
    samples = scan_all(config.dataset).samples
    plan = plan_buckets(samples, config.dataset, 16, lambda width, height, area: (width, height))
    memory = FileMemory(folder)
    naming = Recipes(folder, NoEncoders.identity, config.dataset, 3, False, False, memory)
    contents = {
        "latents": _content(folder, {"latents": torch.zeros(16, SIDE // 8, SIDE // 8).bfloat16()}),
        "text": _content(folder, {"text_embeddings": torch.zeros(TOKENS, 32).bfloat16()}),
    }
    for kind in contents:
        (folder / kind).mkdir(parents=True)
    done: set[str] = set()
    for planned in plan.samples:
        for entry in naming.of(planned).item.entries:
            if entry.key not in done:
                done.add(entry.key)
                entry.path.write_bytes(contents[entry.kind].replace(_KEY, entry.key.encode()))


def _content(folder: Path, tensors: dict[str, Tensor]) -> bytes:
    entry = Entry(folder, "model", _KEY.decode())
    write_entry(entry, tensors)
    content = entry.path.read_bytes()
    shutil.rmtree(folder / "model")
    return content


def timed(action: Callable[[], Any]) -> tuple[float, float, Any]:
    """Seconds of the clock, seconds of CPU, and what came out."""
    gc.collect()
    clock, cpu = time.perf_counter(), time.process_time()
    result = action()
    return time.perf_counter() - clock, time.process_time() - cpu, result


def least_of_two(action: Callable[[], Any]) -> tuple[float, float, Any]:
    """As `timed`, of the one of two rounds that took less CPU: other programs take caches away."""
    first = timed(action)[:2]
    clock, cpu, result = timed(action)
    return *min(first, (clock, cpu), key=lambda each: each[1]), result


def measure_start(root: Path, count: int) -> dict[str, Any]:
    """Start from a cache of a number of samples: unknown to the index, known, and from its list.

    The least of two starts counts but for the unknown one.

    Args:
        root: Where samples and cache lie; made where they are not yet.
        count: Of the samples.
    """
    torch.set_num_threads(1)
    config = RunConfig.model_validate(
        {
            "family": "qwen_image",
            "base": {"path": "embedded"},
            "dataset": {"path": str(root / "data"), "resolution": SIDE, "upscale": True},
            "cache": {"dir": str(root / "cache")},
            "preview": {"every": 0},
            "output": {"dir": str(root), "name": "start"},
        }
    )
    if not (root / "data").exists():
        make_dataset(root / "data", count)
        make_cache(config, root / "cache")
        time.sleep(2.1)  # what is younger than a tick of the file system is not remembered
    shutil.rmtree(root / "cache/index", ignore_errors=True)

    def start(of: RunConfig) -> Any:
        process = SingleProcess(torch.device("cpu"))
        return prepare(of, SilentObserver(), process, lambda family, location: NoEncoders())

    found: dict[str, Any] = {"samples": count}
    clock, cpu, _ = timed(lambda: start(config))
    found |= {"unknown_seconds": round(clock, 2), "unknown_cpu_seconds": round(cpu, 2)}
    clock, cpu, prepared = least_of_two(lambda: start(config))
    found |= {"known_seconds": round(clock, 2), "known_cpu_seconds": round(cpu, 2)}
    clock, cpu, manifest = timed(lambda: save_manifest(config, prepared))
    found |= {"write_list_seconds": round(clock, 2), "list_bytes": manifest.stat().st_size}
    cache = config.cache.model_copy(update={"manifest": str(manifest)})
    listed = config.model_copy(update={"cache": cache})
    clock, cpu, again = least_of_two(lambda: start(listed))
    found |= {"from_list_seconds": round(clock, 2), "from_list_cpu_seconds": round(cpu, 2)}
    assert again.dataset.identity == prepared.dataset.identity
    items = list(prepared.dataset.items)
    return found | {"bytes_per_sample": round(measure_memory(items) / count, 1)}


def measure_memory(items: list[CachedItem]) -> int:
    """Bytes that the samples take."""
    gc.collect()
    tracemalloc.start()
    before = tracemalloc.get_traced_memory()[0]
    dataset = CachedDataset(ItemColumns.of(items))
    gc.collect()
    taken = tracemalloc.get_traced_memory()[0] - before
    tracemalloc.stop()
    assert len(dataset) == len(items)
    return taken


def measure_load(root: Path) -> dict[str, Any]:
    """Load samples of 1024 x 1024 pixels and 200 tokens, beside safetensors' own reading.

    In CPU time, because what else runs disturbs the clock more; files are in the system's memory.
    Either way as many samples stay in memory as are read ahead: memory that is new costs more to
    write than memory that was just given back.
    """
    items: list[CachedItem] = []
    size = Bucket(1024, 1024)
    for number in range(LOADED):
        latents, text = (make_entry(root, kind, number) for kind in ("latents", "text"))
        write_entry(latents, {"latents": torch.randn(16, 128, 128).bfloat16()})
        write_entry(text, {"text_embeddings": torch.randn(200, 3584).bfloat16()})
        items.append(CachedItem(str(number), size, (), latents, (), text, text))
    paths = [(item.latents.path, item.text.path) for item in items]

    def bare() -> None:
        kept = deque(maxlen=AHEAD)
        for pair in paths:
            kept.append([{name: each.float() for name, each in load_file(p).items()} for p in pair])

    def ours() -> None:
        dataset = CachedDataset(items, memory_bytes=0)
        kept = deque(maxlen=AHEAD)
        for number in range(LOADED):
            kept.append(dataset.load(number))

    rounds = [(timed(bare)[1], timed(ours)[1]) for _ in range(15)]
    times = [1000 * min(column) / LOADED for column in zip(*rounds, strict=True)]
    ratio = statistics.median(mine / theirs for theirs, mine in rounds)
    return {
        "bare_ms": round(times[0], 3),
        "load_ms": round(times[1], 3),
        "median_ratio": round(ratio, 3),
    }


def main() -> int:
    """Measure and write `results/dataset_cache.json`."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--samples", type=int, nargs="+", default=[10_000, 30_000, 100_000])
    parser.add_argument("--folder", type=Path, help="keeps the samples for a next time")
    parser.add_argument("--output", type=Path, default=RESULTS / "dataset_cache.json")
    given = parser.parse_args()
    record = {"timed": origin(), "starts": []}
    for count in given.samples:
        kept = given.folder and given.folder / str(count)
        place = contextlib.nullcontext(kept) if kept else tempfile.TemporaryDirectory()
        with place as folder:
            record["starts"].append(measure_start(Path(folder), count))
        print(json.dumps(record["starts"][-1]), flush=True)
    with tempfile.TemporaryDirectory() as folder:
        record["load"] = {**measure_load(Path(folder)), "timed": origin()}
    print(json.dumps(record["load"]))
    write_record(given.output, record)
    return 0


if __name__ == "__main__":
    sys.exit(main())
