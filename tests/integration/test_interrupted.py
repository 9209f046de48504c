"""Runs that break or are cancelled at awkward moments: no step is lost, and no lock stays."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from runs import CancelAfter, metrics, run_config

from trainer_core.config.reading import dump_config
from trainer_core.errors import StorageError
from trainer_core.training import train
from trainer_core.training.observer import CheckpointSaved, PreviewDone, StepDone
from trainer_core.training.run_folder import is_live

ROOT = Path(__file__).resolve().parents[2]
PREVIEW = {
    "every": 3,
    "prompts": ["a red circle on a blue background", "a green cross on a white background"],
    "width": 64,
    "height": 64,
    "steps": 4,
}


def status(version):
    return json.loads((version / "run.json").read_text())["status"]


def steps_saved(version):
    return sorted(int(path.name) for path in (version / "checkpoints").iterdir())


BROKEN = {
    "import": "raise TypeError('Descriptors cannot be created directly.\\nIf this call came')",
    "version": "__version__ = '0.0.1'",
    "empty": "",
}
RUN = """
import sys
from trainer_core.config.reading import load_config
from trainer_core.training import train
from runs import CancelAfter
observer = CancelAfter(99)
result = train(load_config(sys.argv[1]), observer)
for event in observer.events:
    if type(event).__name__ in {"Warned", "Noted"}:
        print("WARNED", event.message)
print("RESULT", result.status, result.step)
"""


# Each starts a process.
@pytest.mark.exhaustive
@pytest.mark.parametrize("damage", BROKEN)
def test_a_broken_tensorboard_is_told_of_and_training_goes_on(tmp_path, cache, damage):
    package = tmp_path / "broken" / "tensorboard"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text(BROKEN[damage])
    run_file = tmp_path / "run.yaml"
    run_file.write_text(dump_config(run_config(tmp_path / "out", cache, training={"steps": 3})))
    places = [str(package.parent), str(ROOT), str(ROOT / "tests" / "integration")]
    done = subprocess.run(
        [sys.executable, "-c", RUN, str(run_file)],
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(places), "OMP_NUM_THREADS": "1"},
    )
    assert "RESULT done 3" in done.stdout, done.stderr[-3000:]
    assert "WARNED TensorBoard does not work (" in done.stdout
    assert len(metrics(tmp_path / "out" / "run" / "v0")) == 3
    assert not (tmp_path / "out" / "run" / "v0" / "lock.json").exists()


def test_a_run_that_cannot_open_its_metrics_leaves_no_lock(tmp_path, cache):
    version = train(run_config(tmp_path, cache, training={"steps": 2})).folder
    (version / "metrics.jsonl").unlink()
    (version / "metrics.jsonl").mkdir()
    with pytest.raises(StorageError, match="metrics"):
        train(run_config(tmp_path, cache, training={"steps": 3}, resume="latest"))
    assert not (version / "lock.json").exists()
    assert not is_live(version)
    assert status(version) == "failed"
    (version / "metrics.jsonl").rmdir()
    again = train(run_config(tmp_path, cache, training={"steps": 3}, resume="auto"))
    assert (again.folder, again.step) == (version, 3)


class BlockImages(CancelAfter):
    """Puts a file where the images of the run go, once a step is done."""

    def __init__(self, folder, step):
        super().__init__(10**9)
        self.place, self.when = folder / "run" / "v0" / "samples" / f"{step:06d}", step

    def notify(self, event):
        super().notify(event)
        if isinstance(event, StepDone) and self.last == self.when:
            self.place.parent.mkdir(exist_ok=True)
            self.place.write_text("")


@pytest.mark.parametrize("steps", [3, 5])
def test_previews_that_cannot_be_written_are_told_of_once_and_end_nothing(tmp_path, cache, steps):
    config = run_config(tmp_path, cache, training={"steps": steps}, preview=PREVIEW)
    observer = BlockImages(tmp_path, 3)
    result = train(config, observer)
    assert (result.status, result.step, len(result.pictures)) == ("done", steps, 2)
    (told,) = [e.message for e in observer.events if "a preview" in getattr(e, "message", "")]
    assert "samples" in told
    assert "Training goes on" in told
    assert steps_saved(result.folder) == [steps]
    assert status(result.folder) == "done"
    assert not (result.folder / "lock.json").exists()


class CancelAtImage(CancelAfter):
    """Cancels when a picture of a step is ready."""

    def __init__(self, step, index=0):
        super().__init__(10**9)
        self.place, self.asked = (step, index), False

    def notify(self, event):
        super().notify(event)
        if isinstance(event, PreviewDone) and (event.step, event.prompt_index) == self.place:
            self.asked = True

    def cancelled(self):
        return self.asked


@pytest.mark.parametrize("step", [0, 3])
def test_a_cancel_between_images_draws_no_other_and_saves_the_step(tmp_path, cache, step):
    config = run_config(tmp_path, cache, training={"steps": 9}, preview=PREVIEW)
    observer = CancelAtImage(step)
    result = train(config, observer)
    assert (result.status, result.step) == ("cancelled", step)
    drawn = [e for e in observer.events if isinstance(e, PreviewDone) and e.step == step]
    assert [event.prompt_index for event in drawn] == [0]
    assert observer.last == step
    assert [e.step for e in observer.events if isinstance(e, CheckpointSaved)] == [step]
    assert result.adapters[0].is_file()
    resume = run_config(
        tmp_path, cache, training={"steps": 9}, preview={**PREVIEW, "every": 0}, resume="latest"
    )
    resumed = train(resume)
    assert (resumed.folder, resumed.status, resumed.step) == (result.folder, "done", 9)


class CancelWhileSampling(CancelAfter):
    """Cancels some questions after step 3, so in the middle of its first image."""

    def __init__(self):
        super().__init__(10**9)
        self.questions = 0

    def cancelled(self):
        if self.last < 3:
            return False
        self.questions += 1
        return self.questions > 3


def test_a_cancel_while_an_image_is_drawn_gives_it_up(tmp_path, cache):
    config = run_config(tmp_path, cache, training={"steps": 9}, preview={**PREVIEW, "steps": 20})
    observer = CancelWhileSampling()
    result = train(config, observer)
    assert (result.status, result.step) == ("cancelled", 3)
    assert not [e for e in observer.events if isinstance(e, PreviewDone) and e.step == 3]
    assert observer.questions < 10, "it went on drawing"
