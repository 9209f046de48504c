"""Runs that break or are cancelled at awkward moments: no step is lost, and no lock stays."""

import pytest
from runs import CancelAfter, record, run_config

from tests.fixtures.combinations import rarely
from trainer_core.errors import StorageError
from trainer_core.training import train
from trainer_core.training.checkpoints.run_folder import failure_reason, is_live
from trainer_core.training.observer import CheckpointSaved, PreviewDone

PREVIEW = {
    "every": 3,
    "prompts": ["a red circle on a blue background", "a green cross on a white background"],
    "width": 64,
    "height": 64,
    "steps": 4,
}


def test_a_run_that_cannot_open_its_metrics_leaves_no_lock(tmp_path, cache):
    version = train(run_config(tmp_path, cache, training={"steps": 2})).folder
    (version / "metrics.jsonl").unlink()
    (version / "metrics.jsonl").mkdir()
    with pytest.raises(StorageError, match="metrics"):
        train(run_config(tmp_path, cache, training={"steps": 3}, resume="latest"))
    assert not (version / "lock.json").exists()
    assert not is_live(version)
    assert "metrics" in failure_reason(record(version))
    (version / "metrics.jsonl").rmdir()
    again = train(run_config(tmp_path, cache, training={"steps": 3}, resume="auto"))
    assert (again.folder, again.step) == (version, 3)


class CancelAtImage(CancelAfter):
    """Cancels when a picture of a step is ready."""

    def __init__(self, step):
        super().__init__()
        self.place, self.asked = step, False

    def notify(self, event):
        super().notify(event)
        self.asked |= isinstance(event, PreviewDone) and event.step == self.place

    def cancelled(self):
        return self.asked


class CancelWhileSampling(CancelAtImage):
    """Cancels some questions after a step, so in the middle of its first image."""

    questions = 0

    def cancelled(self):
        self.questions += self.last >= self.place
        return self.questions > 3


@pytest.mark.parametrize(
    ("how", "step", "images"),
    [*rarely([(CancelAtImage, 0, [0]), (CancelWhileSampling, 3, [])]), (CancelAtImage, 3, [0])],
)
def test_a_cancel_while_images_are_made_makes_no_other_and_saves_the_step(
    tmp_path, cache, how, step, images
):
    preview = {**PREVIEW, "steps": 9}
    config = run_config(tmp_path, cache, training={"steps": 5}, preview=preview)
    observer = how(step)
    result = train(config, observer)
    assert (result.status, result.step, observer.last) == ("cancelled", step, step)
    drawn = [e for e in observer.events if isinstance(e, PreviewDone) and e.step == step]
    assert [event.prompt_index for event in drawn] == images
    assert [e.step for e in observer.events if isinstance(e, CheckpointSaved)] == [step]
    assert result.adapters[0].is_file()
    resume = run_config(tmp_path, cache, training={"steps": 5}, resume="latest")
    resumed = train(resume)
    assert (resumed.folder, resumed.status, resumed.step) == (result.folder, "done", 5)
