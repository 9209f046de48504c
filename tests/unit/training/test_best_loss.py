"""The lowest loss on held-out images, and when a run gets no better."""

import pytest

from tests.fixtures.tables import table
from trainer_core.training.checkpoints.best_loss import BestLoss


def taken(losses):
    best = BestLoss()
    for step, loss in enumerate(losses, 1):
        best.add(10 * step, loss)
    return best


@pytest.mark.parametrize(("losses", "step", "misses"), table(__file__, "lowest losses"))
def test_the_first_of_the_lowest_is_best_and_others_are_misses(losses, step, misses):
    best = taken(losses)
    assert (best.step, best.misses) == (step, misses)
    assert best.record() == ({"step": step, "loss": min(losses)} if losses else None)
    for patience in range(5):
        assert best.stop_due(patience) == (patience > 0 and misses >= patience)


@pytest.mark.parametrize("losses", [[], [0.1], [0.1 + 1e-17, 1 / 3, 0.7], [5e-324, 1.0]])
def test_a_checkpoint_brings_it_back_to_the_bit(losses):
    before = taken(losses)
    after = taken([9.0, 8.0])
    after.restore(before.tensors(), 50)
    assert vars(after) == vars(before)
    assert bool(before.tensors()) == bool(losses)


def test_what_was_measured_in_another_way_is_not_compared():
    one, other = BestLoss(3), BestLoss(4)
    one.add(10, 0.5)
    other.add(20, 0.9)
    other.restore(one.tensors(), 20)
    assert other.record() is None
    other.add(30, 0.7)
    assert other.record() == {"step": 30, "loss": 0.7}
    again = BestLoss(3)
    again.restore(one.tensors(), 20)
    assert again.record() == {"step": 10, "loss": 0.5}
