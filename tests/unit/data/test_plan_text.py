"""The printed plan says what the plan does."""

from pathlib import Path

from trainer_core.config import DatasetSection
from trainer_core.data.plan_text import describe_plan, planned_batches
from trainer_core.types import Bucket, PlannedSample, Sample


def planned(bucket: Bucket, **more) -> PlannedSample:
    return PlannedSample(Sample("a.png", Path("a.png"), "", 64, 64, **more), bucket)


def test_the_lines_say_what_an_epoch_trains():
    folders = [{"path": "b", "batch_size": 4, "num_repeats": 2}]
    dataset = DatasetSection(path="a", folders=folders)
    samples = [planned(Bucket(64, 64))] * 5 + [planned(Bucket(64, 32), folder=1)] * 4
    samples += [planned(Bucket(32, 32), validation=True)] * 3
    plan = planned_batches(samples, dataset, 2, 2)
    assert describe_plan(plan) == [
        "An epoch: 13 samples in 5 batches and 3 steps.",
        "  64x32: 4 images, 8 times an epoch, 2 batches of at most 4, 1 full step",
        "  64x64: 5 images, 3 batches of at most 2, 1 full step and 1 left to share a step",
    ]
    passes = [each for step in range(1, 4) for each in plan.passes(step)]
    assert len(passes) == 5
    assert planned_batches(samples[-3:], dataset, 2, 2) is None
