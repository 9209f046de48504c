"""Steps that are not finite are skipped, and lead back; a kill in between changes no bit."""

import math
import re

import pytest
import torch
from faults import BREAKS, BROKEN, BrokenBase, overflowing
from runs import CancelAfter, assert_equal_runs, merge, metrics, record, run_config, tensors

from trainer_core.errors import NonFiniteError
from trainer_core.training import train
from trainer_core.training.observer import CheckpointRestored, StepDone

LATER = pytest.mark.exhaustive
LAST = BREAKS["training"]["steps"]
RECOVERY = {"skips": 1, "returns": 1, "rate_factor": 0.01}


@pytest.fixture(autouse=True)
def _breaks():
    with overflowing():
        yield


def config_of(folder, cache, recovery=RECOVERY, **training):
    own = merge(BREAKS["training"], {"recovery": recovery, **training})
    return run_config(folder, cache, adapter=BREAKS["adapter"], training=own)


def resumed(config, resume="latest"):
    return config.model_copy(update={"resume": resume})


class KilledError(Exception):
    """What stands for a kill: nothing is saved, and nobody is told."""


class KillAt(CancelAfter):
    """Ends a run without a word after so many steps, those that are made again included."""

    def __init__(self, steps):
        super().__init__()
        self.left = steps

    def notify(self, event):
        super().notify(event)
        self.left -= isinstance(event, StepDone)
        if not self.left:
            raise KilledError


@pytest.fixture(scope="module")
def whole(tmp_path_factory, cache):
    """A run that broke and recovered, and who heard it."""
    observer = CancelAfter()
    with overflowing():
        return train(config_of(tmp_path_factory.mktemp("whole"), cache), observer), observer


def test_a_run_that_breaks_goes_back_and_on_with_a_lower_rate(whole):
    result, observer = whole
    assert (result.status, result.step) == ("done", LAST)
    assert all(map(math.isfinite, result.losses))
    ((step, to),) = [(each["step"], each["to"]) for each in record(result.folder)["returns"]]
    # Not to the state right before the first that broke, from which the same numbers follow.
    assert (step, to) == (BROKEN + 1, 2)
    assert [each.to for each in observer.events if isinstance(each, CheckpointRestored)] == [to]
    lines = metrics(result.folder)
    assert [line["step"] for line in lines] == list(range(1, LAST + 1))
    rates = [n * 1e-3 * (1.0 if n <= to else 0.01) for n in range(1, LAST + 1)]
    assert [line["learning_rate"] for line in lines] == pytest.approx(rates)
    said = observer.said()
    assert sum("is skipped" in each for each in said) == 1
    (back,) = [each for each in said if "goes back" in each]
    assert back.startswith(f"Step {step} is not finite. The run goes back to the checkpoint of")
    assert "with 0.01 of the learning rate (return 1 of 1)" in back
    assert all(torch.isfinite(each).all() for each in tensors(result.adapters[0]).values())


@pytest.mark.parametrize("behind", [0, *(pytest.param(n, marks=LATER) for n in (-1, 2))])
def test_a_kill_in_and_after_the_row_of_broken_steps_changes_no_bit(tmp_path, cache, whole, behind):
    """0: right behind the return; 2: behind the next checkpoint, too."""
    config = resumed(config_of(tmp_path, cache), "auto")
    with pytest.raises(KilledError):
        train(config, KillAt(BROKEN + 1 + behind))
    result = train(config)
    assert (result.status, result.folder.name) == ("done", "v0")
    assert_equal_runs(whole[0].folder, result.folder, LAST)
    assert record(result.folder)["returns"] == record(whole[0].folder)["returns"]


@LATER
def test_what_does_not_help_ends_with_the_layer_and_a_remedy(tmp_path, cache):
    config = config_of(tmp_path, cache, {"skips": 1, "returns": 1, "rate_factor": 1.0})
    with pytest.raises(NonFiniteError) as error:
        train(config)
    assert re.search(r"first the (output|gradient) of transformer_blocks\.\d", error.value.found)
    assert "without the adapter the loss is finite" in error.value.found
    (version,) = (tmp_path / "run").iterdir()
    ended = record(version)
    assert (ended["status"], len(ended["returns"])) == ("failed", 1)
    assert (ended["non_finite"]["first"], ended["non_finite"]["step"]) == (BROKEN, BROKEN + 1)
    # With a rate that somebody lowers by hand it may go back again.
    lower = config_of(tmp_path, cache, optimizer={"learning_rate": 8e-5})
    result = train(resumed(lower, "auto"))
    assert (result.status, result.folder, result.step) == ("done", version, LAST)


def test_a_step_that_is_left_out_is_as_if_it_had_not_been(tmp_path, cache):
    settings = {"steps": 6, "checkpoint_every": 1, "keep_checkpoints": 9}
    result = train(run_config(tmp_path, cache, training=settings), BrokenBase(3, 4))
    assert result.status == "done"
    lines = metrics(result.folder)
    assert [line.get("skipped", False) for line in lines] == [n in (3, 4) for n in range(1, 7)]
    assert all("loss" not in line for line in lines if "skipped" in line)
    assert len(result.losses) == 4
    assert record(result.folder)["skipped_steps"] == 2
    states = [
        tensors(result.folder / "checkpoints" / f"{step:06d}" / "training_state.safetensors")
        for step in (2, 3, 4)
    ]
    assert [int(each.pop("recovery.skipped", 0)) for each in states] == [0, 1, 2]
    for state in states[1:]:
        assert all(torch.equal(state[key], states[0][key]) for key in states[0])
