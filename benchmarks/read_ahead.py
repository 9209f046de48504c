"""What a batch costs a step, read when it is needed and read ahead.

Samples of full size lie in files, nothing is kept in memory, and the device's work is a sleep of
half a second. What is measured is how long the step waits until its batch can be copied: files
read, noise drawn and mixed in.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import torch

from benchmarks.loop_work import FAMILY
from benchmarks.measuring.record import origin, write_record
from trainer_core.data.batch_plan import BatchPlan
from trainer_core.data.cache.cache_file import make_entry, read_entry, write_entry
from trainer_core.data.cache.cached_dataset import CachedDataset
from trainer_core.data.cache.cached_item import CachedItem
from trainer_core.data.load_batch import load_batch
from trainer_core.training.step.micro_batch import MicroBatchLoss
from trainer_core.training.step.read_ahead import ReadAhead
from trainer_core.training.step.step_plan import StepPlan
from trainer_core.types import Bucket

STEP_SECONDS = 0.5


def encoded(folder: Path, count: int, pixels: int, tokens: int) -> CachedDataset:
    """Samples of random numbers, in bf16 as encoders give them; none is kept in memory."""
    items: list[CachedItem] = []
    for number in range(count):
        latents = make_entry(folder, "latents", number, pixels)
        text = make_entry(folder, "text", number, tokens)
        shape = (16, pixels // 8, pixels // 8)
        write_entry(latents, {"latents": torch.randn(shape).bfloat16()})
        write_entry(text, {"text_embeddings": torch.randn(tokens, 3584).bfloat16()})
        size = Bucket(pixels, pixels)
        items.append(CachedItem(f"{number}.png", size, (), latents, (), text, text))
    return CachedDataset(items, memory_bytes=0)


def micro_batch_loss(dataset: CachedDataset, plan: BatchPlan) -> MicroBatchLoss:
    """A step of which the batch alone is made."""

    def load(step: int, micro: int) -> Any:
        return load_batch(dataset, plan, step, micro, caption_dropout=0.1, seed=0)

    return MicroBatchLoss(
        load=load,
        load_preserved=lambda step, micro: None,
        predict=FAMILY.prediction.predict,  # pyright: ignore[reportArgumentType]
        sigma_at=lambda _, place: place,
        seed=0,
        part=(0, 1),
        device=torch.device("cpu"),
    )


def waits(give: Callable[[int, int], object], steps: int, seconds: float) -> list[float]:
    """Milliseconds that each step waits for its batch."""
    found: list[float] = []
    for step in range(1, steps + 1):
        started = time.perf_counter()
        give(step, 0)
        found.append(1000 * (time.perf_counter() - started))
        time.sleep(seconds)
    return found


def measure(pixels: int, tokens: int, batch: int, steps: int, seconds: float) -> dict[str, Any]:
    """A row."""
    with tempfile.TemporaryDirectory() as folder:
        dataset = encoded(Path(folder), 2 * batch + 6, pixels, tokens)
        plan = BatchPlan(dataset.buckets, dataset.kinds, batch, 1, 1, 0)
        maker = micro_batch_loss(dataset, plan)
        plain = waits(maker.prepare, steps, 0.0)
        with closing(ReadAhead(maker.prepare, StepPlan(plan).following(steps))) as ahead:
            hidden = waits(ahead, steps, seconds)
        bare: list[float] = []
        for item in dataset.items:
            started = time.perf_counter()
            read_entry(item.latents)
            read_entry(item.text)
            bare.append(1000 * (time.perf_counter() - started))
        loaded = []
        for index in range(len(dataset)):
            started = time.perf_counter()
            dataset.load(index)
            loaded.append(1000 * (time.perf_counter() - started))
    return {
        "pixels": pixels,
        "tokens": tokens,
        "batch_size": batch,
        "when_needed_ms": round(statistics.median(plain), 2),
        "read_ahead_ms": round(statistics.median(hidden[1:]), 3),
        "read_ahead_worst_ms": round(max(hidden[1:]), 3),
        "share_of_step": round(statistics.median(hidden[1:]) / 1000 / STEP_SECONDS, 5),
        "sample_ms": round(statistics.median(loaded), 2),
        "bare_read_ms": round(statistics.median(bare), 2),
    }


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure, print and write."""
    parser = argparse.ArgumentParser(description="What a batch costs a step.")
    parser.add_argument("--steps", type=int, default=12)
    parser.add_argument("--output", type=Path)
    given = parser.parse_args(arguments)
    torch.set_num_threads(1)
    rows: list[dict[str, Any]] = []
    for pixels, tokens, batch in ((1024, 200, 1), (1024, 512, 4)):
        rows.append(measure(pixels, tokens, batch, given.steps, STEP_SECONDS))
        print(rows[-1])
    if given.output:
        facts = origin()
        record = {"benchmark": "read_ahead", "counted": facts, "timed": facts, "rows": rows}
        write_record(given.output, record)


if __name__ == "__main__":
    main()
