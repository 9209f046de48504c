"""What becomes of steps that are not finite, followed by hand."""

from dataclasses import dataclass

import pytest
import torch

from trainer_core.config import RecoverySection
from trainer_core.errors import NonFiniteError
from trainer_core.training.checkpoint_search import broken_step, last_before, leads_nowhere
from trainer_core.training.recovery import GoBackError, Recovery, rate_share
from trainer_core.training.step import MicroStep

PARTS = [MicroStep(torch.tensor(0.0), (0.25,), ("one.png",))]


@dataclass
class Counts:
    skipped: int = 0
    returns: int = 0


class Run:
    """A course of steps, each of them finite or not, as a loop makes them.

    Args:
        steps: Its length.
        breaks: The steps whose loss is not finite.
        saved: The states that it can go back to.
    """

    def __init__(self, steps, breaks, saved=(), **settings):
        self.steps, self.breaks, self.saved = steps, set(breaks), saved
        self.counts, self.made, self.warned, self.ended = Counts(), [], [], None
        self.recovery = Recovery(
            settings=RecoverySection.model_validate(settings),
            counts=self.counts,
            steps=steps,
            target=lambda first: max((s for s in saved if s < first - 1), default=None),
            place=lambda step: " (in a layer)",
            end=self.end,
            warn=self.warned.append,
        )

    def end(self, step, first):
        self.ended = step, first
        return "what to do"

    def go(self, done=0):
        for step in range(done + 1, self.steps + 1):
            broken = step in self.breaks
            if broken:
                self.recovery.broken(step, "the loss", PARTS)
            else:
                self.made.append(step)
            self.counts.skipped = self.counts.skipped + 1 if broken else 0


def test_single_steps_are_left_out_and_told_of():
    run = Run(10, [2, 5, 6, 10], skips=2)
    run.go()
    assert run.made == [1, 3, 4, 7, 8, 9]
    assert [line.split(" is ")[0] for line in run.warned] == [f"Step {n}" for n in (2, 5, 6, 10)]
    assert "2 in a row, 2 at most" in run.warned[2]


@pytest.mark.parametrize(("skips", "broken", "first"), [(0, 5, 5), (1, 6, 5), (3, 8, 5)])
def test_more_in_a_row_lead_back_to_a_state_before_the_first(skips, broken, first):
    run = Run(20, range(5, 20), saved=[0, 2, 4, 5, 6], skips=skips)
    with pytest.raises(GoBackError) as back:
        run.go()
    # Not to the state of step 4 either, from which the same numbers follow.
    assert (back.value.step, back.value.to) == (broken, 2)
    assert run.ended is None
    run.counts.returns, run.counts.skipped = 1, 0
    with pytest.raises(NonFiniteError) as error:
        run.go(2)
    assert run.ended == (broken, first)
    text = f"the loss of step {broken} is not finite (in a layer); samples of this step: one.png"
    assert error.value.found.startswith(text)
    assert error.value.remedy == "what to do"


def test_without_a_state_or_leave_to_go_back_it_ends():
    for saved, settings in (([], {}), ([0, 2], {"returns": 0})):
        run = Run(20, range(5, 20), saved=saved, **settings)
        with pytest.raises(NonFiniteError):
            run.go()
        assert run.ended == (8, 5)


def test_a_run_that_makes_no_step_at_all_does_not_end_as_done():
    run = Run(2, [1, 2])
    with pytest.raises(NonFiniteError):
        run.go()
    assert run.ended == (2, 1)


def test_weights_that_are_not_finite_lead_back_too():
    run = Run(20, [], saved=[4, 8])
    error = NonFiniteError("adapter.x is not finite at step 8", "finite weights", "")
    with pytest.raises(GoBackError) as back:
        run.recovery.weights(8, error)
    assert (back.value.step, back.value.to) == (9, 4)
    run.counts.returns = 1
    with pytest.raises(NonFiniteError, match=r"adapter\.x is not finite") as raised:
        run.recovery.weights(8, error)
    assert raised.value.remedy == "what to do"


def test_each_return_multiplies_the_rate():
    settings = RecoverySection(rate_factor=0.5)
    assert [rate_share(settings, count) for count in range(3)] == [1.0, 0.5, 0.25]
    assert 1e-4 / 3 * rate_share(settings, 0) == 1e-4 / 3


def test_states_within_a_row_of_broken_steps_lead_nowhere(tmp_path):
    folders = [tmp_path / "checkpoints" / f"{step:06d}" for step in (4, 8, 9, 10, 11)]
    for folder in folders:
        folder.mkdir(parents=True)
    import json

    record = {"non_finite": broken_step(11, "bf16", 9)}
    (tmp_path / "run.json").write_text(json.dumps(record))
    assert [leads_nowhere(each, "bf16") for each in folders] == [False, True, True, True, False]
    assert not any(leads_nowhere(each, "fp32") for each in folders)
    assert last_before(tmp_path / "checkpoints", 9) == 4
    assert last_before(tmp_path / "checkpoints", 5) is None
    assert broken_step(11, "bf16", 11) == {"step": 11, "precision": "bf16"}
