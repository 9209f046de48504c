"""What goes wrong at the worst moment: two runs in one folder, a cancel while it recovers, ..."""

import hashlib
import json
import re

import pytest
import torch
from faults import BrokenBase
from runs import CancelAfter, assert_equal_runs, record, run_config, tensors
from safetensors.torch import save_file

from trainer_core.errors import InputError, RunError
from trainer_core.offload.load_base import PlacedBase
from trainer_core.training import train
from trainer_core.training.checkpoints.checkpoint import read_checkpoint
from trainer_core.training.checkpoints.checkpoint_search import best_step
from trainer_core.training.observer import RunStarted, StepDone, WentBack

LATER = pytest.mark.exhaustive
SHORT = {"steps": 4, "checkpoint_every": 1, "keep_checkpoints": 9}


class Meanwhile(CancelAfter):
    """Does something while a run is behind a step."""

    def __init__(self, step, work):
        super().__init__()
        self.when, self.work = step, work

    def notify(self, event):
        super().notify(event)
        if isinstance(event, StepDone) and self.last == self.when:
            self.work()


@pytest.mark.exhaustive
def test_a_second_run_in_one_version_is_refused_and_the_first_goes_on(tmp_path, cache):
    whole = train(run_config(tmp_path / "alone", cache, training=SHORT))
    errors, others = [], []

    def second():
        for resume in ("latest", "2"):
            with pytest.raises(InputError) as error:
                train(run_config(tmp_path, cache, training=SHORT, resume=resume))
            errors.append(error.value)
        # `auto` does not go on with one that somebody works in.
        others.append(train(run_config(tmp_path, cache, training=SHORT, resume="auto")))

    first = train(run_config(tmp_path, cache, training=SHORT), Meanwhile(3, second))
    assert (first.status, first.step) == ("done", 4)
    for error in errors:
        assert str(first.folder) in error.found
        assert error.expected
        assert error.remedy
    assert [first.folder.name, others[0].folder.name] == ["v0", "v1"]
    for each in (first, others[0]):
        assert_equal_runs(whole.folder, each.folder, 4)


@pytest.mark.exhaustive
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
    facts = json.dumps([known["format"], known["step"], known["settings"]])
    content = hashlib.sha256(file.read_bytes()).hexdigest()
    known["sha256"] = hashlib.sha256(f"{facts}{content}".encode()).hexdigest()
    about.write_text(json.dumps(known))
    with pytest.raises(InputError, match=rf"{re.escape(name)} is not finite"):
        read_checkpoint(folder)
    observer = CancelAfter()
    resumed = train(run_config(tmp_path, cache, training=SHORT, resume="latest"), observer)
    assert any(
        "is not finite" in each and "going on from step 2" in each for each in observer.said()
    )
    assert_equal_runs(whole.folder, resumed.folder, 4)


@pytest.mark.parametrize("place", ["run.prepare", "trainer.Trainer.train"])
def test_a_gpu_that_stops_before_the_first_step_or_behind_the_last_is_told(
    tmp_path, cache, monkeypatch, place
):
    """Such a GPU also refuses what a run does at its end, such as to wait for copies."""

    def stop(*given):
        raise RuntimeError("CUDA error: an illegal memory access was encountered")

    monkeypatch.setattr(f"trainer_core.training.{place}", stop)
    monkeypatch.setattr(PlacedBase, "close", stop)
    with pytest.raises(RunError, match="the GPU has stopped"):
        train(run_config(tmp_path, cache))


HELD = {"dataset": {"validation": {"share": 0.1, "every": 1, "most": 2, "noise_levels": 1}}}


class BreaksBehind(BrokenBase):
    """Breaks the base behind a step, or of 0 as the run starts, until it goes back.

    From then on it looks which checkpoint is named as the best one behind each step.
    """

    def __init__(self, step, version):
        super().__init__()
        self.behind, self.version, self.named, self.back = step, version, {}, []
        self.moment = StepDone if step else RunStarted

    def notify(self, event):
        CancelAfter.notify(self, event)
        if isinstance(event, WentBack):
            self.back.append(event.to)
            self.mend()
        elif isinstance(event, StepDone) and self.back:
            best = record(self.version).get("best")
            assert best is None or best["step"] == best_step(self.version)
            self.named[event.result.step] = best and best["step"]
        elif isinstance(event, self.moment) and self.last == self.behind:
            self.spoil()


@LATER
@pytest.mark.parametrize(("behind", "to"), [(3, 2), (1, 0)])
def test_behind_a_return_the_best_checkpoint_is_one_that_is_there(tmp_path, cache, behind, to):
    """The best one, of the last whole step, is given up: it leads to the one that breaks."""
    training = {"steps": 4, "checkpoint_every": 2, "recovery": {"skips": 0, "returns": 1}}
    config = run_config(tmp_path, cache, training=training, **HELD)
    observer = BreaksBehind(behind, tmp_path / "run" / "v0")
    result = train(config, observer)
    assert observer.back == [to]
    assert set(observer.named) == set(range(to + 1, 5))
    # A step is told before its checkpoint is written.
    assert (observer.named[to + 1] or 0) <= to
    assert result.best.step == record(result.folder)["best"]["step"]
