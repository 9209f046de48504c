"""The best checkpoint, early stop and the ledger, in runs whose held-out losses are by hand."""

import json
import shutil
from collections import defaultdict
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from runs import CancelAfter, assert_same_files, metrics, record, run_config

from trainer_core.cli import main
from trainer_core.config import RunConfig
from trainer_core.errors import ConfigError
from trainer_core.training.checkpoints.checkpoint import checkpoint_folders
from trainer_core.training.checkpoints.find_checkpoint import find_checkpoint
from trainer_core.training.metrics.loss_ledger import read_ledger
from trainer_core.training.objectives.validation import Validation
from trainer_core.training.observer import RunRequests, RunStarted
from trainer_core.training.run import train

STEPS, BEST, LAST = 8, 2, 5
LOSSES = {0: 0.1, 1: 0.3, BEST: 0.2, 3: 0.25, 4: 0.22, LAST: 0.3}
"""Of each step on held-out images: never better than the base, and worse from step 3 on."""
HELD = {"share": 0.3, "every": 1, "noise_levels": 1, "most": 2}


def by_hand(losses=LOSSES):
    """Measure as ever, and tell these losses of the held-out images."""
    measure, told = Validation.__call__, defaultdict(lambda: 0.4, losses)

    def measured(self, step):
        found = measure(self, step)
        return found if found.loss is None else replace(found, loss=told[step])

    patch = pytest.MonkeyPatch()
    patch.setattr(Validation, "__call__", measured)
    return patch


@pytest.fixture(scope="module", autouse=True)
def _losses():
    patch = by_hand()
    yield
    patch.undo()


def config(folder, cache, every=1, **more) -> RunConfig:
    training = {
        "steps": STEPS,
        "batch_size": 1,
        "gradient_accumulation_steps": 1,
        "early_stop": 3,
        "keep_checkpoints": 1,
        **more,
    }
    held = {**HELD, "every": every}
    return run_config(folder, cache, training=training, dataset={"validation": held})


def go_on(given, observer=None, resume="latest"):
    return train(given.model_copy(update={"resume": resume}), observer)


@pytest.fixture(scope="module")
def ended_and_said(tmp_path_factory, cache):
    observer = CancelAfter()
    return train(config(tmp_path_factory.mktemp("ended"), cache), observer), said_of_base(observer)


@pytest.fixture(scope="module")
def ended(ended_and_said):
    return ended_and_said[0]


def said_of_base(observer: CancelAfter) -> list[str]:
    return [each for each in observer.said() if "never better than the base" in each]


def held_out(folder: Path) -> dict[int, float]:
    return {m["step"]: m["validation_loss"] for m in metrics(folder) if "validation_loss" in m}


def steps_kept(folder: Path) -> list[int]:
    return [int(path.name) for path in checkpoint_folders(folder / "checkpoints")]


def test_it_ends_when_it_gets_no_better_keeps_the_best_state_and_says_so(ended_and_said):
    ended, said = ended_and_said
    assert (ended.status, ended.step) == ("done", LAST)
    assert f"step {BEST}" in ended.stopped_early
    assert (ended.best.step, ended.best.loss) == (BEST, LOSSES[BEST])
    found = record(ended.folder)
    assert (found["status"], found["stopped_by"]) == ("done", "training.early_stop")
    assert found["best"] == {"step": BEST, "loss": LOSSES[BEST]}
    assert held_out(ended.folder) == LOSSES
    assert all("trained_loss" in m for m in metrics(ended.folder))
    (line,) = said
    assert f"{LOSSES[0]:.4g} before the first step" in line
    assert f"{LOSSES[BEST]:.4g} at its lowest, at step {BEST}" in line
    # The best checkpoint stays beside the newest one.
    assert steps_kept(ended.folder) == [BEST, LAST]
    root = ended.folder.parent
    asked = RunConfig.model_validate(
        {"output": {"dir": str(root.parent), "name": root.name}, "resume": "best"}
    )
    assert find_checkpoint(asked) == ended.best.adapter.parent
    assert ended.best.adapter.is_file()


def test_an_ended_run_ends_again_until_it_is_told_otherwise(tmp_path, cache, ended):
    shutil.copytree(ended.folder.parent, tmp_path / "run")
    again = go_on(config(tmp_path, cache))
    assert (again.step, again.stopped_early) == (ended.step, ended.stopped_early)
    assert go_on(config(tmp_path, cache, early_stop=0)).step == STEPS


@pytest.mark.exhaustive
def test_stopped_and_resumed_it_ends_at_the_same_step_with_the_same_bits(
    tmp_path, cache, ended_and_said
):
    ended, said = ended_and_said
    stops = CancelAfter(LAST - 1)
    first = train(config(tmp_path, cache), stops)
    assert (first.status, first.step) == ("cancelled", LAST - 1)
    assert not said_of_base(stops), "it may become better yet"
    hears = CancelAfter()
    resumed = go_on(config(tmp_path, cache), hears)
    assert said_of_base(hears) == said
    assert_same_end(resumed, ended)


def assert_same_end(resumed, ended):
    assert (resumed.status, resumed.step) == ("done", ended.step)
    assert resumed.stopped_early == ended.stopped_early
    assert (resumed.best.step, resumed.best.loss) == (ended.best.step, ended.best.loss)
    assert_same_files(resumed.adapters, ended.adapters)
    assert read_ledger(resumed.folder) == read_ledger(ended.folder)
    assert metrics(resumed.folder) == metrics(ended.folder)


def test_the_verb_ledger_lists_the_worst_images_first(tmp_path, ended, capsys):
    rows = read_ledger(ended.folder)["images"]
    for place in (ended.folder, ended.folder.parent, ended.folder / "run.yaml"):
        assert main(["ledger", str(place), "--most", "2", "--json"]) == 0
        said = json.loads(capsys.readouterr().out)
        assert Path(said["folder"]) == ended.folder
        assert said["images"] == rows[:2]
    assert main(["ledger", str(ended.folder)]) == 0
    shown = capsys.readouterr().out.splitlines()
    assert [line.split()[-1] for line in shown[2:]] == [each["name"] for each in rows]
    copied = tmp_path / "run" / "v0"
    shutil.copytree(ended.folder, copied)
    (copied / "ledger.json").unlink()
    for place, found in ((copied, "has no ledger.json"), (tmp_path, "is not a run")):
        assert main(["ledger", str(place)]) == 2
        assert found in capsys.readouterr().err


def test_sample_takes_the_best_checkpoint_of_a_run_that_measured(tmp_path, ended, capsys):
    asked = [str(ended.folder / "run.yaml"), "preview.prompts=[a red diamond]", "steps=2"]
    asked += ["width=32", "height=32", "--json"]
    images = []
    for number, name in enumerate(("best", str(ended.best.adapter), str(ended.adapters[0]))):
        words = [*asked, f"adapter={name}", f"output={tmp_path / str(number)}"]
        assert main(["sample", *words]) == 0
        (line,) = capsys.readouterr().out.splitlines()
        with Image.open(json.loads(line)["path"]) as image:
            images.append(np.asarray(image).copy())
    best, same, last = images
    assert (best == same).all()
    assert (best != last).any()
    asked = [str(ended.folder / "run.yaml"), "adapter=best", f"output.dir={tmp_path}", "prompt=x"]
    assert main(["sample", *asked]) == 2
    assert "held-out images" in capsys.readouterr().err
    nothing = {"output": {"dir": str(tmp_path), "name": "run"}, "resume": "best"}
    with pytest.raises(ConfigError, match="best") as error:
        find_checkpoint(RunConfig.model_validate(nothing))
    assert "dataset.validation.share" in error.value.expected


class Ends(CancelAfter):
    """Asks for an end during a step, by a signal or by the panel's button."""

    def __init__(self, step: int, *, cancel: bool) -> None:
        super().__init__()
        self.at, self.cancel = step, cancel

    @property
    def heard(self) -> bool:
        began = any(isinstance(each, RunStarted) for each in self.events)
        return began and self.last >= self.at - 1

    def requests(self) -> RunRequests:
        return RunRequests(cancel=self.heard and self.cancel, stop=self.heard and not self.cancel)

    def cancelled(self) -> bool:
        return self.heard and self.cancel


@pytest.mark.parametrize("step", [BEST + 1, LAST])
def test_a_measurement_that_a_signal_gave_up_is_made_up_for(tmp_path, cache, ended, step):
    first = train(config(tmp_path, cache), Ends(step, cancel=True))
    assert (first.status, first.step) == ("cancelled", step)
    assert step not in held_out(first.folder), "it was measured all the same"
    assert_same_end(go_on(config(tmp_path, cache)), ended)
