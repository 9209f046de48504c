"""What is made smaller first is what costs least time."""

import pytest

from tests.fixtures.small_steps import SHAPES, Model, batch_of, maker
from tests.fixtures.swapped_blocks import MAKERS, place
from trainer_core.errors import RunError
from trainer_core.families.registry import get_family
from trainer_core.offload.possible_plans import StepPace
from trainer_core.training.memory.out_of_memory import SmallerStep
from trainer_core.training.step.split_batches import SplitBatches


def splitting(samples=4):
    given = maker(Model(SHAPES["plain"]), batch_of(SHAPES["plain"], tuple(range(samples))))
    split = SplitBatches(given)
    list(split(1, 0))
    return split


def smaller(pace, *, count=0, unchecked=0, samples=4):
    placed = place(MAKERS["flux"](), get_family("flux"), count, slots=2)
    left = [unchecked]

    def checkpoint_all():
        more, left[0] = left[0], 0
        return more

    placed.checkpoint_all, placed.uncheckpointed = checkpoint_all, lambda: left[0]
    return placed, SmallerStep(placed, splitting(samples), pace)


def taken(step):
    """All that can be done, in order."""
    said = []
    while True:
        try:
            line = step.take()
        except RunError as error:
            return said, error.found
        words = ("compute again" if "again" in line else "swap" if "swapped" in line else "split",)
        said += words


FAST, SLOW = 1e15, 1.0
"""A link that makes swapping cost nothing, and one over which it takes for ever."""


@pytest.mark.parametrize(
    ("pace", "unchecked", "order"),
    [
        # Nothing is known: what changes no number comes first.
        (None, 2, ["compute again", "swap", "split", "split"]),
        (None, 0, ["swap", "split", "split"]),
        # Sending costs nothing, and what rounds in another way is not clearly faster.
        (StepPace(1.0, FAST), 0, ["swap", "split", "split"]),
        (StepPace(1.0, FAST), 1, ["compute again", "swap", "split", "split"]),
        # A third of the step is the activations that are not computed again.
        (StepPace(1.0, FAST), 5, ["split", "split", "compute again", "swap"]),
        # Over a slow link blocks are swapped only when nothing else is left.
        (StepPace(1e-9, SLOW), 0, ["split", "split", "swap"]),
        (StepPace(1e-9, SLOW), 1, ["compute again", "split", "split", "swap"]),
    ],
)
def test_the_order_is_that_of_the_time_that_is_lost(pace, unchecked, order):
    placed, step = smaller(pace, unchecked=unchecked)
    said, found = taken(step)
    assert said == order
    assert found == "all blocks are swapped, and samples go through the base one by one"
    placed.close()


def test_what_a_step_takes_is_the_longer_of_computing_and_sending():
    pace = StepPace(full=3.0, link_bytes_per_s=10.0)
    assert pace.seconds(1.0, 0, 1, 2) == 3.0
    assert pace.seconds(0.0, 0, 1, 2) == 2.0  # nothing is computed twice
    assert pace.seconds(1.0, 20, 1, 2) == 3.0
    assert pace.seconds(1.0, 20, 2, 2) == 4.0  # sent once for each part
    assert pace.seconds(1.0, 20, 1, 1) == 5.0  # nothing is sent ahead
    # `full` is all of its micro-batches, and each of them sends.
    assert StepPace(3.0, 10.0, 2).seconds(1.0, 20, 1, 2) == 4.0
