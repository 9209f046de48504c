"""A disk that is full: the run says so, keeps what it had and goes on once there is room."""

import json
import shutil

import pytest
from runs import CancelAfter, metrics, run_config

from tests.fixtures.small_disk import fill
from trainer_core.errors import StorageError
from trainer_core.training import train
from trainer_core.training.checkpoint import find_checkpoint, read_checkpoint
from trainer_core.training.metrics_file import MetricsWriter
from trainer_core.training.observer import RunRequests
from trainer_core.training.run_folder import is_live
from trainer_core.types import StepResult


def test_full_disk_keeps_older_checkpoints_whole_and_resumes_after_room_is_made(small_disk, cache):
    settings = {"steps": 8, "checkpoint_every": 1, "keep_checkpoints": 3}
    config = run_config(small_disk, cache, training=settings)

    class Filler(CancelAfter):
        def notify(self, event):
            super().notify(event)
            if self.last == 4 and not (small_disk / "filler").exists():
                free = shutil.disk_usage(small_disk).free
                (small_disk / "filler").write_bytes(b"0" * (free - 8192))

    with pytest.raises(StorageError) as error:
        train(config, Filler(10**9))
    assert "disk is full" in str(error.value)
    assert "resume=latest" in str(error.value)
    (small_disk / "filler").unlink()
    resumed = run_config(small_disk, cache, training=settings, resume="latest")
    step = read_checkpoint(find_checkpoint(resumed)).step
    assert step >= 3
    result = train(resumed)
    assert (result.status, result.step) == ("done", 8)


class FillAfterSaving(CancelAfter):
    """Has step 3 saved, and fills the disk when it is: the next to fail are the metrics."""

    def __init__(self, folder):
        super().__init__(10**9)
        self.folder = folder

    def requests(self):
        return RunRequests(save=self.last == 2)

    def notify(self, event):
        super().notify(event)
        if self.last == 3 and type(event).__name__ == "CheckpointSaved":
            fill(self.folder)


def test_metrics_that_find_no_room_leave_no_lock_and_the_next_run_goes_on(small_disk, cache):
    settings = {"steps": 80, "schedule": {"name": "constant", "warmup_steps": 0}}
    config = run_config(small_disk, cache, training=settings, resume="auto")
    with pytest.raises(StorageError, match=r"disk is full while writing .*metrics"):
        train(config, FillAfterSaving(small_disk))
    version = small_disk / "run" / "v0"
    assert not (version / "lock.json").exists()
    assert not is_live(version)
    (small_disk / "filler").unlink()
    result = train(config, CancelAfter(6))
    assert result.folder == version
    assert [entry["step"] for entry in metrics(version)] == list(range(1, 7))
    assert json.loads((version / "run.json").read_text())["status"] == "cancelled"


def test_what_a_full_disk_refused_is_not_refused_again_when_closing(small_disk):
    path = small_disk / "metrics.jsonl"
    with MetricsWriter(path, 0, lambda reason: None) as writer:
        fill(small_disk)
        lines = [StepResult(n, 0.5, 0.5, 1e-4, 0.3, 0.5, 0.01, 1000.0) for n in range(1, 100)]
        with pytest.raises(StorageError, match="disk is full"):
            list(map(writer.write, lines))
        assert len(writer.steps) < 99


def test_a_new_version_that_finds_no_room_leaves_nothing(small_disk, cache):
    fill(small_disk)
    with pytest.raises(StorageError, match="disk is full"):
        train(run_config(small_disk, cache, training={"steps": 2}))
    root = small_disk / "run"
    assert not root.exists() or list(root.iterdir()) == []
