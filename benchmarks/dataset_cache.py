"""What a large cache costs: to start from it, to hold it, to load a sample, to read clips for it.

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
from functools import partial
from pathlib import Path
from typing import Any, NoReturn

import av
import numpy as np
import torch
from PIL import Image
from safetensors.torch import load_file
from torch import Tensor

from benchmarks.measuring.record import RESULTS, origin, write_record
from trainer_core.config import RunConfig
from trainer_core.data.buckets import plan_buckets
from trainer_core.data.cache.cache_file import Entry, make_entry, write_entry
from trainer_core.data.cache.cached_dataset import CachedDataset
from trainer_core.data.cache.cached_item import CachedItem
from trainer_core.data.cache.entry_keys import EntryKeys, SizedImage
from trainer_core.data.cache.item_columns import ItemColumns
from trainer_core.data.clips import clip_facts, cut_clip
from trainer_core.data.file_memory import FileMemory
from trainer_core.data.motion import Motion
from trainer_core.data.sources.scan_dataset import scan_all
from trainer_core.training.observer import SilentObserver
from trainer_core.training.prepare.encode_dataset import prepare, save_manifest
from trainer_core.training.step.processes import SingleProcess
from trainer_core.types import Bucket

SIDE = 64
TOKENS = 12
LOADED = 64
AHEAD = 4
CLIP_SIZE, CLIP_FRAMES, CLIP_RATE = (1280, 720), 132, 16.0
_KEY = b"0" * 64


class NoEncoders:
    """Encoders that are not there: whoever needs them would not have started from the cache."""

    identity = "none"
    weighs = False
    sounds = ""

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
    keys = EntryKeys(folder, NoEncoders.identity, config.dataset, memory)
    contents = {
        "latents": _content(folder, {"latents": torch.zeros(16, SIDE // 8, SIDE // 8).bfloat16()}),
        "text": _content(folder, {"text_embeddings": torch.zeros(TOKENS, 32).bfloat16()}),
    }
    for kind in contents:
        (folder / kind).mkdir(parents=True)
    done: set[str] = set()
    for planned in plan.samples:
        for entry in keys.of(planned).item.entries:
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


def make_clip(path: Path, key_frames: int) -> None:
    """Write a noisy image that moves, four parts long, with a key frame for every so many."""
    width, height = CLIP_SIZE
    noise = np.random.default_rng(0).normal(0, 6, (height, width + 2 * CLIP_FRAMES, 3))
    coarse = np.random.default_rng(1).integers(0, 256, (18, 32, 3), dtype=np.uint8)
    wide = Image.fromarray(coarse).resize(noise.shape[1::-1], Image.Resampling.BICUBIC)
    pixels = np.clip(np.asarray(wide) + noise, 0, 255).astype(np.uint8)
    with av.open(str(path), "w") as container:
        stream = container.add_stream("libx264", rate=round(CLIP_RATE))
        stream.width, stream.height, stream.pix_fmt = width, height, "yuv420p"
        stream.options = {"g": str(key_frames)}
        for number in range(CLIP_FRAMES):
            shown = np.ascontiguousarray(pixels[:, 2 * number :][:, :width])
            container.mux(stream.encode(av.VideoFrame.from_ndarray(shown, "rgb24")))
        container.mux(stream.encode())


def measure_clips(root: Path, key_frames: int) -> dict[str, Any]:
    """Decode and resize a clip's parts for the cache, beside PyAV that decodes it in one go.

    Both resize as images are, with Pillow; in CPU time, because both decode in threads. Each part
    is decoded from the key frame before it.
    """
    path, bucket = root / f"{key_frames}.mp4", Bucket(512, 288, 33)
    make_clip(path, key_frames)
    size = bucket.width, bucket.height
    # The scan reads how long it is, and that is remembered.
    parts = cut_clip(clip_facts(path), [bucket.frames], CLIP_RATE, 16)

    def bare(resizes: bool) -> int:
        frames = []
        with av.open(str(path)) as container:
            container.streams.video[0].thread_type = "AUTO"
            for frame in container.decode(video=0):
                image = frame.to_image()
                if resizes:
                    image = image.resize(size, Image.Resampling.LANCZOS)
                frames = [*frames[1 - bucket.frames :], np.array(image)]
        return len(frames)

    def ours() -> None:
        for part in parts:
            motion = Motion(part)
            for image in SizedImage(path, bucket, False, 3, clip=part).frames():
                motion.look(image)
                np.array(image)

    actions = partial(bare, False), partial(bare, True), ours
    rounds = [[timed(each)[1] for each in actions] for _ in range(5)]
    least = [1000 * min(each) / CLIP_FRAMES for each in zip(*rounds, strict=True)]
    return {
        "frames_a_key_frame": key_frames,
        "decoding_ms": round(least[0], 2),
        "sequential_ms": round(least[1], 2),
        "own_ms": round(least[2], 2),
        "median_speed": round(statistics.median(each[1] / each[2] for each in rounds), 3),
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
    with tempfile.TemporaryDirectory() as folder:
        found = [measure_clips(Path(folder), number) for number in (16, 250)]
        record["clips"] = {"rounds": found, "timed": origin()}
    print(json.dumps(record["clips"]))
    write_record(given.output, record)
    return 0


if __name__ == "__main__":
    sys.exit(main())
