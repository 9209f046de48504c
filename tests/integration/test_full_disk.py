"""A disk that is full: the run says so, keeps what it had and goes on once there is room."""

import pytest
from runs import CancelAfter, metrics, run_config

from tests.fixtures.small_disk import fill
from trainer_core.errors import StorageError
from trainer_core.training import train
from trainer_core.training.checkpoints.run_folder import is_live
from trainer_core.training.observer import CheckpointSaved, StepDone

SETTINGS = {"steps": 8, "checkpoint_every": 1, "keep_checkpoints": 3}


class FillBetween(CancelAfter):
    """Takes the last byte of a disk behind a step, and gives it back behind another one."""

    def __init__(self, folder, first, last):
        super().__init__()
        self.folder, self.first, self.until = folder, first, last

    def notify(self, event):
        super().notify(event)
        filler = self.folder / "filler"
        if not isinstance(event, StepDone):
            return
        if self.last == self.first:
            fill(self.folder)
        elif self.last == self.until:
            filler.unlink()

    def said(self, words):
        return [e.message for e in self.events if words in getattr(e, "message", "")]


@pytest.mark.exhaustive
def test_a_disk_that_is_full_for_some_steps_costs_their_checkpoints_alone(small_disk, cache):
    observer = FillBetween(small_disk, 3, 6)
    result = train(run_config(small_disk, cache, training=SETTINGS), observer)
    assert (result.status, result.step) == ("done", 8)
    assert len(observer.said("(the checkpoint). Training goes on")) == 1, "one cause, one line"
    assert len(observer.said("There is room again: the checkpoint")) == 1
    saved = [event.step for event in observer.events if isinstance(event, CheckpointSaved)]
    assert saved[-2:] == [7, 8]
    assert not {4, 5} & set(saved)
    # No line of the metrics is lost.
    assert [entry["step"] for entry in metrics(result.folder)] == list(range(1, 9))
    assert result.adapters[0].is_file()


def test_a_disk_that_stays_full_ends_with_what_is_whole_and_resumes(small_disk, cache):
    observer = FillBetween(small_disk, 4, 99)
    with pytest.raises(StorageError) as error:
        train(run_config(small_disk, cache, training=SETTINGS), observer)
    assert observer.last == 8, "it ended before its last step"
    assert "the disk is full" in error.value.found
    assert "the run has made 8 steps, and the last whole state is that of step 3" in str(
        error.value
    )
    assert "resume=latest" in error.value.remedy
    version = small_disk / "run" / "v0"
    assert not (version / "lock.json").exists()
    assert not is_live(version)
    (small_disk / "filler").unlink()
    result = train(run_config(small_disk, cache, training=SETTINGS, resume="latest"))
    assert (result.folder, result.status, result.step) == (version, "done", 8)
    assert [entry["step"] for entry in metrics(version)] == list(range(1, 9))


def test_a_new_version_that_finds_no_room_leaves_nothing(small_disk, cache):
    fill(small_disk)
    with pytest.raises(StorageError, match="disk is full"):
        train(run_config(small_disk, cache, training={"steps": 2}))
    root = small_disk / "run"
    assert not root.exists() or list(root.iterdir()) == []
