"""What goes wrong at the worst moment: two runs in one folder, a cancel while it recovers, ..."""

import gc
import json
import re
import time

import pytest
import torch
from launches import launch_two
from runs import CancelAfter, run_config, tensors
from safetensors.torch import save_file
from test_full_disk import FillBetween
from test_recovery import config_of, record
from test_resume import assert_equal_runs

from tests.fixtures.small_disk import fill
from trainer_core.config import RunConfig
from trainer_core.config.reading import dump_config
from trainer_core.errors import AdapterFileError, InputError, NonFiniteError
from trainer_core.training import train
from trainer_core.training.checkpoint import read_checkpoint
from trainer_core.training.checkpoint_search import best_step
from trainer_core.training.observer import RunStarted, StepDone, ValidationDone, Warned, WentBack

LATER = pytest.mark.exhaustive
SHORT = {"steps": 4, "checkpoint_every": 1, "keep_checkpoints": 9}


def said(observer):
    return [each.message for each in observer.events if isinstance(each, Warned)]


@pytest.fixture(scope="module")
def recovered(tmp_path_factory, cache):
    """A run that goes back once, and what it said."""
    observer = CancelAfter(10**9)
    return train(config_of(tmp_path_factory.mktemp("recovered"), cache), observer), observer


class Meanwhile(CancelAfter):
    """Does something while a run is behind a step."""

    def __init__(self, step, work):
        super().__init__(10**9)
        self.when, self.work = step, work

    def notify(self, event):
        super().notify(event)
        if isinstance(event, StepDone) and self.last == self.when:
            self.work()


@pytest.mark.parametrize("resume", ["latest", pytest.param("2", marks=LATER)])
def test_a_second_run_in_one_version_is_refused_and_the_first_goes_on(tmp_path, cache, resume):
    whole = train(run_config(tmp_path / "alone", cache, training=SHORT))
    errors = []

    def second():
        with pytest.raises(InputError) as error:
            train(run_config(tmp_path, cache, training=SHORT, resume=resume))
        errors.append(error.value)

    first = train(run_config(tmp_path, cache, training=SHORT), Meanwhile(3, second))
    assert (first.status, first.step) == ("done", 4)
    assert str(first.folder) in errors[0].found
    assert errors[0].expected
    assert errors[0].remedy
    assert_equal_runs(whole.folder, first.folder, 4)


@LATER
def test_a_second_run_of_the_same_name_has_a_version_of_its_own(tmp_path, cache):
    """Which `auto` begins, because it does not go on with one that somebody works in."""
    results = []
    auto = run_config(tmp_path, cache, training=SHORT, resume="auto")
    first = train(auto, Meanwhile(3, lambda: results.append(train(auto))))
    assert [first.folder.name, results[0].folder.name] == ["v0", "v1"]
    assert_equal_runs(first.folder, results[0].folder, 4)


class CancelWhenBack(CancelAfter):
    """Cancels when the run says that it goes back."""

    def __init__(self):
        super().__init__(10**9)

    def cancelled(self):
        return any(isinstance(each, WentBack) for each in self.events)


@LATER
@pytest.mark.parametrize("every", [4, 0])
def test_a_cancel_while_it_goes_back_changes_no_bit(tmp_path, cache, recovered, every):
    """Without checkpoints it goes back to its start."""
    whole = recovered[0]
    changed = {} if every else {"checkpoint_every": 0}
    if not every:
        base = config_of(tmp_path / "whole", cache)
        settings = base.training.model_copy(update=changed)
        whole = train(base.model_copy(update={"training": settings}))
    config = config_of(tmp_path, cache, resume="auto")
    config = config.model_copy(update={"training": config.training.model_copy(update=changed)})
    stopped = train(config, CancelWhenBack())
    assert stopped.status == "cancelled"
    assert stopped.step == record(whole.folder)["returns"][0]["to"]
    resumed = train(config)
    assert (resumed.status, resumed.folder) == ("done", stopped.folder)
    assert_equal_runs(whole.folder, resumed.folder, 24)
    assert record(resumed.folder)["returns"] == record(whole.folder)["returns"]


@LATER
def test_who_listens_is_told_where_a_run_goes_back_to(recovered):
    (back,) = [each for each in recovered[1].events if isinstance(each, WentBack)]
    assert back.to == record(recovered[0].folder)["returns"][0]["to"]


@pytest.mark.parametrize("value", [torch.nan, pytest.param(-torch.inf, marks=LATER)])
def test_a_number_that_is_none_in_the_file_to_start_from_is_refused(tmp_path, cache, value):
    first = train(run_config(tmp_path / "first", cache, training={"steps": 1}))
    state = tensors(first.adapters[0])
    name = next(each for each in sorted(state) if not each.endswith(".alpha"))
    state[name].view(-1)[0] = value
    file = tmp_path / "broken.safetensors"
    save_file(state, str(file))
    with pytest.raises(AdapterFileError) as error:
        train(run_config(tmp_path, cache, adapter={"start_from": str(file)}))
    assert name in error.value.found
    assert not (tmp_path / "run").exists()


def test_a_checkpoint_with_a_number_that_is_none_is_passed_over(tmp_path, cache):
    """Also where somebody has made the hash fit."""
    whole = train(run_config(tmp_path / "alone", cache, training=SHORT))
    train(run_config(tmp_path, cache, training=SHORT), CancelAfter(3))
    folder = tmp_path / "run" / "v0" / "checkpoints" / "000003"
    file, about = folder / "training_state.safetensors", folder / "state.json"
    state = tensors(file)
    name = next(each for each in sorted(state) if each.startswith("adapter."))
    state[name].view(-1)[0] = torch.nan
    save_file(state, str(file))
    known = json.loads(about.read_text())
    del known["sha256"]  # as earlier versions wrote it
    about.write_text(json.dumps(known))
    with pytest.raises(InputError, match=rf"{re.escape(name)} is not finite"):
        read_checkpoint(folder)
    observer = CancelAfter(99)
    resumed = train(run_config(tmp_path, cache, training=SHORT, resume="latest"), observer)
    assert any(
        "is not finite" in each and "going on from step 2" in each for each in said(observer)
    )
    assert_equal_runs(whole.folder, resumed.folder, 4)


@LATER
def test_a_clock_that_jumps_back_changes_nothing_but_what_is_shown(tmp_path, cache, monkeypatch):
    training = {**SHORT, "checkpoint_minutes": 1000.0}
    whole = train(run_config(tmp_path / "whole", cache, training=training))
    real, jumps = time.time, []

    def jumping():
        jumps.append(1)
        return real() - 3600.0 * len(jumps)

    monkeypatch.setattr(time, "time", jumping)
    config = run_config(tmp_path, cache, training=training)
    result = train(config, CancelAfter(3))
    result = train(config.model_copy(update={"resume": "latest"}))
    assert len(jumps) > 4
    assert (result.status, result.step) == ("done", 4)
    assert_equal_runs(whole.folder, result.folder, 4)
    lines = [
        json.loads(line) for line in (result.folder / "metrics.jsonl").read_text().splitlines()
    ]
    assert [line["time"] for line in lines] != sorted(line["time"] for line in lines)
    assert all(line["step_seconds"] > 0 for line in lines)
    assert all(seconds >= 0 for line in lines for seconds in line["times"].values())


class FillWhen(FillBetween):
    """Takes the last byte of a disk at an event, and gives it back some steps later."""

    def __init__(self, folder, event, steps):
        super().__init__(folder, -1, -1)
        self.event, self.steps, self.left = event, steps, None

    def notify(self, event):
        CancelAfter.notify(self, event)
        if isinstance(event, self.event) and self.left is None:
            fill(self.folder)
            self.left = self.steps
        elif isinstance(event, StepDone) and self.left:
            self.left -= 1
            if not self.left:
                (self.folder / "filler").unlink()


@LATER
def test_a_disk_that_is_full_when_it_goes_back_ends_nothing(small_disk, tmp_path, cache):
    def config(folder):
        found = config_of(folder, cache)
        few = found.training.model_copy(update={"keep_checkpoints": 1})
        return found.model_copy(update={"training": few})

    whole = train(config(tmp_path / "whole"))
    result = train(config(small_disk), FillWhen(small_disk, WentBack, 3))
    assert (result.status, result.step) == ("done", 24)
    assert_equal_runs(whole.folder, result.folder, 24)


HELD = {"dataset": {"validation": {"share": 0.1, "every": 1, "most": 2, "noise_levels": 1}}}


@LATER
def test_a_disk_that_is_full_at_the_best_loss_ends_nothing(small_disk, tmp_path, cache):
    whole = train(run_config(tmp_path / "whole", cache, training=SHORT, **HELD))
    config = run_config(small_disk, cache, training=SHORT, **HELD)
    result = train(config, FillWhen(small_disk, ValidationDone, 3))
    assert (result.status, result.step) == ("done", 4)
    assert_equal_runs(whole.folder, result.folder, 4)
    marked = record(result.folder).get("best")
    kept = result.best
    assert marked is None or (result.folder / "checkpoints" / f"{marked['step']:06d}").is_dir()
    assert kept is None or kept.adapter.is_file()


def test_a_ledger_that_cannot_be_written_ends_nothing(tmp_path, cache):
    place = tmp_path / "run" / "v0" / "ledger.json"
    observer = CancelAfter(10**9)

    class Blocks(CancelAfter):
        def notify(self, event):
            observer.notify(event)
            if not isinstance(event, StepDone):
                return
            if event.result.step == 1:
                place.mkdir()
            elif event.result.step == 3:
                place.rmdir()

    result = train(run_config(tmp_path, cache, training=SHORT), Blocks(10**9))
    assert result.status == "done"
    assert json.loads(place.read_text())
    assert len([each for each in said(observer) if "ledger.json" in each]) == 1
    assert len([each for each in said(observer) if "There is room again" in each]) == 1
    saved = sorted(each.name for each in (result.folder / "checkpoints").iterdir())
    assert saved == ["000001", "000002", "000003", "000004"]


class BrokenBase(CancelAfter):
    """Puts a NaN into the base's layers before the first step."""

    def __init__(self):
        super().__init__(10**9)
        self.before = {}

    def notify(self, event):
        super().notify(event)
        if isinstance(event, RunStarted):
            self.spoil()

    def spoil(self):
        for layer in [each for each in gc.get_objects() if type(each) is torch.nn.Linear]:
            if not layer.weight.requires_grad and layer.weight.dim() == 2:
                self.before[layer] = layer.weight[0, 0].item()
                layer.weight[0, 0] = torch.nan

    def mend(self):
        for layer, number in self.before.items():
            layer.weight[0, 0] = number


@LATER
def test_a_resumed_run_with_no_older_state_ends_with_a_remedy(tmp_path, cache):
    """It has neither its start in memory nor a checkpoint before the one that leads there."""
    training = {"steps": 6, "recovery": {"skips": 0, "returns": 3}}
    train(run_config(tmp_path, cache, training=training), CancelAfter(3))
    config = run_config(tmp_path, cache, training=training, resume="latest")
    observer = BrokenBase()
    try:
        with pytest.raises(NonFiniteError) as error:
            train(config, observer)
    finally:
        observer.mend()
    assert "of step 4 is not finite" in error.value.found
    assert "without the adapter the loss is not finite either" in error.value.found
    assert "resume=none" in error.value.remedy
    ended = record(tmp_path / "run" / "v0")
    assert ended["status"] == "failed"
    assert "returns" not in ended


TWO = """
import sys
import torch
from trainer_core.config import RunConfig
from trainer_core.config.reading import load_config
from trainer_core.errors import NonFiniteError
from trainer_core.training import AccelerateProcesses, train
processes = AccelerateProcesses(torch.device("cpu"))
try:
    train(load_config(sys.argv[1]), None, processes)
except NonFiniteError as error:
    print(f"ENDED {processes.index} {error.found}", flush=True)
"""


@pytest.mark.slow
@LATER
def test_two_processes_name_the_layer_that_one_of_them_found(tmp_path, cache, recovered):
    config = config_of(tmp_path, cache, {"skips": 1, "returns": 0}).model_dump(mode="json")
    config["training"] |= {"batch_size": 2}
    run_file = tmp_path / "run.yaml"
    run_file.write_text(dump_config(RunConfig.model_validate(config)))
    done = launch_two(tmp_path, TWO, run_file)
    found = re.findall(r"ENDED (\d) (.*)", done.stdout)
    assert sorted(index for index, _ in found) == ["0", "1"], done.stderr[-3000:]
    for _, text in found:
        assert re.search(r"first the (output|gradient) of transformer_blocks\.\d", text)
        assert "without the adapter the loss is finite" in text


class BreaksOnce(BrokenBase):
    """Mends the base when the run goes back."""

    def notify(self, event):
        super().notify(event)
        if isinstance(event, WentBack):
            self.mend()


class BreaksBehind(BrokenBase):
    """Breaks the base behind a step, until the run goes back.

    From then on it looks which checkpoint is named as the best one behind each step.
    """

    def __init__(self, step, version):
        super().__init__()
        self.behind, self.version, self.named = step, version, {}

    def notify(self, event):
        CancelAfter.notify(self, event)
        back = any(isinstance(each, WentBack) for each in self.events)
        if isinstance(event, WentBack):
            self.mend()
        elif isinstance(event, StepDone) and back:
            best = record(self.version).get("best")
            assert best is None or best["step"] == best_step(self.version)
            self.named[event.result.step] = best and best["step"]
        elif isinstance(event, StepDone) and event.result.step == self.behind:
            self.spoil()


@LATER
@pytest.mark.parametrize(("behind", "to"), [(3, 2), (1, 0)])
def test_behind_a_return_the_best_checkpoint_is_one_that_is_there(tmp_path, cache, behind, to):
    """The best one, of the last whole step, is given up: it leads to the one that breaks."""
    training = {"steps": 4, "checkpoint_every": 2, "recovery": {"skips": 0, "returns": 1}}
    config = run_config(tmp_path, cache, training=training, **HELD)
    observer = BreaksBehind(behind, tmp_path / "run" / "v0")
    result = train(config, observer)
    assert [each.to for each in observer.events if isinstance(each, WentBack)] == [to]
    assert set(observer.named) == set(range(to + 1, 5))
    # A step is told before its checkpoint is written.
    assert (observer.named[to + 1] or 0) <= to
    assert result.best.step == record(result.folder)["best"]["step"]


@LATER
def test_behind_a_return_losses_that_were_measured_in_another_way_are_not_compared(tmp_path, cache):
    training = {
        "steps": 8,
        "checkpoint_every": 4,
        "recovery": {"skips": 0, "returns": 1},
    }
    before = run_config(tmp_path, cache, training=training, **HELD)
    train(before, CancelAfter(6))
    # The state of step 4 was measured at one noise level, that of step 6 at none since.
    changed = {"validation": {**HELD["dataset"]["validation"], "noise_levels": 3}}
    again = run_config(tmp_path, cache, training=training, dataset=changed, resume="latest")
    observer = BreaksOnce()
    result = train(again, observer)
    assert [each.to for each in observer.events if isinstance(each, WentBack)] == [4]
    measured = {
        each.step: each.loss for each in observer.events if isinstance(each, ValidationDone)
    }
    assert set(measured) == {5, 6, 7, 8}
    assert result.best is not None
    assert result.best.loss == min(measured.values())
