"""The lowest loss on held-out images, and when a run gets no better."""

import pytest

from trainer_core.training.best_loss import BestLoss


def taken(losses):
    best = BestLoss()
    for step, loss in enumerate(losses, 1):
        best.take(10 * step, loss)
    return best


@pytest.mark.parametrize(
    ("losses", "step", "misses"),
    [
        ([], 0, 0),
        ([0.5], 10, 0),
        ([0.5, 0.4, 0.3], 30, 0),
        ([0.5, 0.4, 0.45, 0.6], 20, 2),
        ([0.5, 0.4, 0.6, 0.39], 40, 0),
        # As low as before is not lower.
        ([0.5, 0.5, 0.5], 10, 2),
        # Better than the one before is not better than the lowest.
        ([0.3, 0.5, 0.4], 10, 2),
    ],
)
def test_the_first_of_the_lowest_is_best_and_others_are_misses(losses, step, misses):
    best = taken(losses)
    assert (best.step, best.misses) == (step, misses)
    assert best.record() == ({"step": step, "loss": min(losses)} if losses else None)
    for patience in range(5):
        assert best.ends(patience) == (patience > 0 and misses >= patience)


@pytest.mark.parametrize("losses", [[], [0.1], [0.1 + 1e-17, 1 / 3, 0.7], [5e-324, 1.0]])
def test_a_checkpoint_brings_it_back_to_the_bit(losses):
    before = taken(losses)
    after = taken([9.0, 8.0])
    after.restore(before.tensors())
    assert (after.step, after.loss, after.misses) == (before.step, before.loss, before.misses)
    assert bool(before.tensors()) == bool(losses)
