"""What run.json says of a run's checkpoints, on a real folder."""

import pytest

from trainer_core.training.checkpoints.best_loss import BestLoss
from trainer_core.training.checkpoints.checkpoint import drop_later_checkpoints, prune_checkpoints
from trainer_core.training.checkpoints.checkpoint_record import DROPPED, CheckpointRecord
from trainer_core.training.checkpoints.find_checkpoint import BEST, best_step
from trainer_core.training.checkpoints.run_folder import create_version


class Run:
    """The checkpoints of a run whose losses on held-out images are given."""

    def __init__(self, folder):
        self.folder, self.best = folder, BestLoss()
        self.losses: dict[int, float] = {}
        self.record = CheckpointRecord(folder, self.best, self.losses)

    def said(self, name):
        return self.folder.read_record().get(name)

    def make(self, losses, keep):
        """Measure and save behind each step."""
        for step, loss in losses.items():
            self.best.add(step, loss)
            self.losses[step] = loss
            place = self.folder.checkpoints / f"{step:06d}"
            place.mkdir(parents=True)
            (place / "adapter.safetensors").touch()
            self.record.mark_best()
            spared = self.record.spared()
            dropped = prune_checkpoints(self.folder.checkpoints, keep, 0, spared)
            self.record.saved(step, dropped)

    def go_back(self, done):
        """As `Recorder` does for a run that goes on from an older state."""
        tensors = BestLoss().tensors()
        older = BestLoss()
        for step, loss in self.losses.items():
            if step <= done:
                older.add(step, loss)
                tensors = older.tensors()
        self.best.restore(tensors, done)
        drop_later_checkpoints(self.folder.checkpoints, done)
        for step in [each for each in self.losses if each > done]:
            del self.losses[step]
        self.record.go_on(done)


@pytest.fixture
def run(tmp_path):
    with create_version(tmp_path, {}, "") as folder:
        yield Run(folder)


def test_the_best_that_is_given_up_is_named_no_more(run):
    run.make({1: 0.5, 2: 0.4, 3: 0.45, 4: 0.3}, keep=9)
    assert run.said(BEST) == {"step": 4, "loss": 0.3}
    run.go_back(3)
    assert run.said(BEST) == {"step": 2, "loss": 0.4}
    assert run.record.best().step == best_step(run.folder.path) == 2


def test_where_the_best_gave_way_to_one_that_is_given_up_the_lowest_that_is_left_is_named(run):
    run.make({1: 0.2, 2: 0.5, 3: 0.4, 4: 0.1}, keep=2)
    assert run.said(DROPPED) == [1, 2]
    run.go_back(3)
    assert run.best.step == 1, "what ends a run early is the lowest loss, wherever that is"
    assert run.said(BEST) == {"step": 3, "loss": 0.4}
    run.make({4: 0.3, 5: 0.6, 6: 0.7, 7: 0.8}, keep=2)
    assert run.said(BEST) == {"step": 4, "loss": 0.3}
    best = run.record.best()
    assert (best.step, best.loss) == (4, 0.3)
    assert best.adapter.is_file()


def test_a_mark_from_another_way_of_measuring_does_not_win_by_its_number(run):
    """The disk did not take the best since; another checkpoint since is named, not the old one."""
    run.make({10: 0.1}, keep=3)
    run.best.forget(measured=10)
    run.best.add(30, 0.5)
    run.losses |= {30: 0.5}
    run.make({40: 0.6}, keep=3)
    assert run.best.step == 30
    assert run.said(BEST) == {"step": 40, "loss": 0.6}
