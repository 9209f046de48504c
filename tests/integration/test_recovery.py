"""Steps that are not finite are left out, and lead back; a kill in between changes no bit."""

import json
import math
import re

import pytest
import torch
from runs import CancelAfter, metrics, run_config, tensors
from test_changed_settings import BREAKS
from test_resume import assert_equal_runs

from trainer_core.errors import NonFiniteError
from trainer_core.training import train
from trainer_core.training.observer import StepDone, Warned

RECOVERY = {"skips": 2, "returns": 1, "rate_factor": 0.01}


def config_of(folder, cache, recovery=RECOVERY, **overrides):
    training = {**BREAKS["training"], "recovery": recovery}
    return run_config(folder, cache, adapter=BREAKS["adapter"], training=training, **overrides)


def record(folder):
    return json.loads((folder / "run.json").read_text())


class KilledError(Exception):
    """What stands for a kill: nothing is saved, and nobody is told."""


class KillAt(CancelAfter):
    """Ends a run without a word after so many steps, those that are made again included."""

    def __init__(self, steps):
        super().__init__(10**9)
        self.left = steps

    def notify(self, event):
        super().notify(event)
        if isinstance(event, StepDone):
            self.left -= 1
            if not self.left:
                raise KilledError


@pytest.fixture(scope="module")
def whole(tmp_path_factory, cache):
    """A run that broke and recovered, and what it said."""
    observer = CancelAfter(10**9)
    return train(config_of(tmp_path_factory.mktemp("whole"), cache), observer), observer


def test_a_run_that_breaks_goes_back_and_on_with_a_lower_rate(whole):
    result, observer = whole
    assert (result.status, result.step) == ("done", 24)
    assert all(map(math.isfinite, result.losses))
    ((step, to),) = [(each["step"], each["to"]) for each in record(result.folder)["returns"]]
    assert to % 4 == 0
    assert to < step - 2
    lines = metrics(result.folder)
    assert [line["step"] for line in lines] == list(range(1, 25))
    rates = [line["learning_rate"] for line in lines]
    assert rates[:to] == pytest.approx([n / 20 for n in range(1, to + 1)])
    assert rates[to] == pytest.approx((to + 1) / 20 * 0.01)
    said = [each.message for each in observer.events if isinstance(each, Warned)]
    assert sum("is left out" in each for each in said) == 2
    (back,) = [each for each in said if "goes back" in each]
    assert back.startswith(f"Step {step} is not finite. The run goes back to the checkpoint of")
    assert "with 0.01 of the learning rate (return 1 of 1)" in back
    assert all(torch.isfinite(each).all() for each in tensors(result.adapters[0]).values())


LATER = pytest.mark.exhaustive


@pytest.mark.parametrize("behind", [0, *(pytest.param(n, marks=LATER) for n in (-2, -1, 6))])
def test_a_kill_in_and_after_the_row_of_broken_steps_changes_no_bit(tmp_path, cache, whole, behind):
    """0: right behind the return; 6: behind the next checkpoint, too."""
    config = config_of(tmp_path, cache, resume="auto")
    after = record(whole[0].folder)["returns"][0]["step"] + behind
    with pytest.raises(KilledError):
        train(config, KillAt(after))
    result = train(config)
    assert (result.status, result.folder.name) == ("done", "v0")
    assert_equal_runs(whole[0].folder, result.folder, 24)
    assert record(result.folder)["returns"] == record(whole[0].folder)["returns"]


@LATER
def test_without_a_checkpoint_it_goes_back_to_its_start(tmp_path, cache):
    training = {**BREAKS["training"], "recovery": RECOVERY, "checkpoint_every": 0}
    config = run_config(tmp_path, cache, adapter=BREAKS["adapter"], training=training)
    result = train(config)
    assert (result.status, result.folder.name) == ("done", "v0")
    assert record(result.folder)["returns"][0]["to"] == 0
    # From the first step on as a run with so low a rate.
    training = {**training, "optimizer": {"learning_rate": 0.01}}
    low = train(run_config(tmp_path / "low", cache, adapter=BREAKS["adapter"], training=training))
    found, expected = tensors(result.adapters[0]), tensors(low.adapters[0])
    for key in expected:
        torch.testing.assert_close(found[key], expected[key], rtol=1e-4, atol=1e-7)


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
    assert ended["non_finite"]["step"] == ended["non_finite"]["first"] + 1
    # With a rate that somebody lowers by hand it may go back again.
    lower = {**BREAKS["training"], "optimizer": {"learning_rate": 0.01}}
    again = run_config(tmp_path, cache, adapter=BREAKS["adapter"], training=lower, resume="auto")
    result = train(again)
    assert (result.status, result.folder) == ("done", version)
    assert result.step == 24


class NotANumber(CancelAfter):
    """Puts a NaN into the base for some steps, and takes it out again."""

    def __init__(self, *steps):
        super().__init__(10**9)
        self.steps, self.before = steps, {}

    def notify(self, event):
        super().notify(event)
        if not isinstance(event, StepDone):
            return
        import gc

        if self.last + 1 in self.steps and not self.before:
            for layer in [each for each in gc.get_objects() if type(each) is torch.nn.Linear]:
                if not layer.weight.requires_grad and layer.weight.dim() == 2:
                    self.before[layer] = layer.weight[0, 0].item()
                    layer.weight.data[0, 0] = torch.nan
        elif self.last + 1 not in self.steps:
            for layer, number in self.before.items():
                layer.weight.data[0, 0] = number
            self.before = {}


def test_a_step_that_is_left_out_is_as_if_it_had_not_been(tmp_path, cache):
    settings = {"steps": 6, "checkpoint_every": 1, "keep_checkpoints": 9}
    result = train(run_config(tmp_path, cache, training=settings), NotANumber(3, 4))
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
