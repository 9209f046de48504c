"""What the batch plan saves and costs: padding of texts, steps of small buckets, its own time.

Caption lengths are drawn log-normally, with a median of 60 tokens and nine of ten between 15 and
240, as written captions have them; at most 512.
"""

from __future__ import annotations

import argparse
import math
import random
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.measuring.record import origin, write_record
from trainer_core.config import DatasetSection
from trainer_core.data.batch_plan import BatchPlan
from trainer_core.data.buckets import plan_buckets
from trainer_core.types import Bucket, Sample


def caption_lengths(count: int, seed: int = 0) -> list[int]:
    """Tokens of captions."""
    drawn = random.Random(seed)
    return [min(512, max(1, round(drawn.lognormvariate(math.log(60), 0.85)))) for _ in range(count)]


def padding(count: int, batch_size: int, sizes: int, *, by_length: bool) -> float:
    """Share of the text tokens of an epoch that are padding."""
    lengths = caption_lengths(count)
    buckets = [Bucket(64 * (8 + n % sizes), 1024) for n in range(count)]
    given = lengths if by_length else None
    plan = BatchPlan(buckets, [0] * count, batch_size, 1, 1, 0, text_tokens=given)
    computed = 0
    for step in range(1, plan.steps_per_epoch + 1):
        for each in plan.passes(step):
            texts = [lengths[index] for index in each.indices]
            computed += len(texts) * max(texts)
    return 1 - sum(lengths) / computed


def small_buckets(images: int, sizes: int, samples: int) -> dict[str, Any]:
    """Steps and passes of an epoch of few images in many sizes, and what else could be done."""
    buckets = [Bucket(64 * (8 + n % sizes), 1024) for n in range(images)]
    plan = BatchPlan(buckets, [0] * images, samples, 1, 1, 0)
    in_group = [buckets.count(bucket) for bucket in dict.fromkeys(buckets)]
    alone = sum(-(-count // samples) for count in in_group)
    passes = [each for step in range(1, 1 + plan.steps_per_epoch) for each in plan.passes(step)]
    return {
        "images": images,
        "sizes": sizes,
        "samples_a_step": samples,
        "steps": plan.steps_per_epoch,
        "passes": len(passes),
        "steps_if_no_size_shares_one": alone,
        "samples_a_step_then": round(images / alone, 2),
        "samples_an_epoch_if_filled_up": alone * samples,
    }


def plan_seconds(count: int, batch_size: int) -> dict[str, Any]:
    """CPU seconds to plan sizes, and to put an epoch in order."""
    drawn = random.Random(0)
    samples = [
        Sample(f"{n}.png", Path("x"), "", drawn.randint(500, 5000), drawn.randint(500, 5000))
        for n in range(count)
    ]
    started = time.process_time()
    sizes = plan_buckets(samples, DatasetSection(), 16, lambda width, height, area: (1, 1))
    planned = time.process_time()
    buckets = [each.bucket for each in sizes.samples]
    plan = BatchPlan(buckets, [0] * count, batch_size, 1, 1, 0)
    made = time.process_time()
    plan.passes(plan.steps_per_epoch + 1)
    return {
        "samples": count,
        "batch_size": batch_size,
        "sizes_s": round(planned - started, 3),
        "plan_s": round(made - planned, 3),
        "epoch_s": round(time.process_time() - made, 3),
    }


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure, print and write."""
    parser = argparse.ArgumentParser(description="What the batch plan saves and costs.")
    parser.add_argument("--samples", type=int, default=100_000)
    parser.add_argument("--output", type=Path)
    given = parser.parse_args(arguments)
    rows: list[dict[str, Any]] = [
        {
            "padding": {
                "images": count,
                "batch_size": batch_size,
                "sizes": sizes,
                "shuffled": round(padding(count, batch_size, sizes, by_length=False), 3),
                "by_length": round(padding(count, batch_size, sizes, by_length=True), 3),
            }
        }
        for count, batch_size, sizes in ((100, 4, 1), (1000, 4, 1), (1000, 4, 12), (10_000, 8, 12))
    ]
    rows += [{"small_buckets": small_buckets(20, 12, samples)} for samples in (2, 4, 8)]
    rows += [{"seconds": plan_seconds(given.samples, batch_size)} for batch_size in (1, 4)]
    for row in rows:
        print(row)
    if given.output:
        facts = origin()
        record = {"benchmark": "batch_plan", "counted": facts, "timed": facts, "rows": rows}
        write_record(given.output, record)


if __name__ == "__main__":
    main()
