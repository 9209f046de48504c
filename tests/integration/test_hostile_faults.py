"""What goes wrong at the worst moment: two runs in one folder, a cancel while it recovers, ..."""

import pytest
from faults import BrokenBase
from runs import CancelAfter, record, run_config

from trainer_core.errors import RunError
from trainer_core.offload.load_base import PlacedBase
from trainer_core.training import train
from trainer_core.training.checkpoints.find_checkpoint import best_step
from trainer_core.training.observer import CheckpointRestored, RunStarted, StepDone

LATER = pytest.mark.exhaustive


@pytest.mark.parametrize("place", ["run.prepare", "trainer.Trainer.train"])
def test_a_gpu_that_stops_before_the_first_step_or_behind_the_last_is_told(
    tmp_path, cache, monkeypatch, place
):
    """Such a GPU also refuses what a run does at its end, such as to wait for copies."""

    def stop(*given, **named):
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
        if isinstance(event, CheckpointRestored):
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
