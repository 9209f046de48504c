"""Which checkpoints give way, and when one is due by the clock."""

import pytest

from trainer_core.training.checkpoints.checkpoint import surplus
from trainer_core.training.checkpoints.checkpoint_clock import CheckpointClock
from trainer_core.training.observer import RunRequests


@pytest.mark.parametrize(
    ("steps", "keep", "every", "spared", "expected"),
    [
        ([10, 20, 30, 40], 2, 0, (), [10, 20]),
        ([40, 20, 30, 10], 2, 0, (), [10, 20]),
        ([10, 20], 2, 0, (), []),
        ([10], 5, 0, (), []),
        ([], 1, 0, (), []),
        ([10, 20, 30, 40], 1, 20, (), [10, 30]),
        ([10, 20, 30, 40], 1, 0, (20,), [10, 30]),
        ([10, 20, 30, 40], 1, 0, (40,), [10, 20, 30]),
        ([10, 20, 30, 40], 1, 30, (10,), [20]),
        ([10, 20, 30, 40], 1, 0, (10, 20, 30), []),
        ([10, 20, 30, 40], 1, 0, (0, 99), [10, 20, 30]),
        ([7, 10, 13, 20, 26], 2, 10, (13,), [7]),
    ],
)
def test_the_newest_the_multiples_and_the_spared_stay(steps, keep, every, spared, expected):
    assert surplus(steps, keep, every, spared) == expected


def test_the_clock_asks_when_the_last_checkpoint_is_old_enough():
    now = [100.0]
    clock = CheckpointClock(2.0, lambda: now[0])
    nothing, save = RunRequests(), RunRequests(save=True)
    asked = []
    for seconds in (0, 60, 59.9, 0.1, 30):
        now[0] += seconds
        asked.append(clock.asking(nothing))
    assert asked == [nothing, nothing, nothing, save, save]
    clock.saved()
    now[0] += 119.9
    assert clock.asking(nothing) == nothing
    now[0] += 0.1
    assert clock.asking(RunRequests(preview=True)) == RunRequests(save=True, preview=True)
