"""The best checkpoint, early stop and the ledger, in real runs."""

from __future__ import annotations

import itertools
import json
import os
import shutil
import signal
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from tests.integration.runs import CancelAfter, metrics, run_config, tensors
from trainer_core.cli import main
from trainer_core.config import RunConfig
from trainer_core.demo.run import dataset_folder
from trainer_core.errors import ConfigError
from trainer_core.training.checkpoint import checkpoint_folders
from trainer_core.training.checkpoint_search import best_step, find_checkpoint
from trainer_core.training.ledger import read_ledger
from trainer_core.training.observer import (
    CheckpointSaved,
    RunRequests,
    RunStarted,
    SilentObserver,
    StepDone,
    Warned,
)
from trainer_core.training.run import train

STEPS = 12
HELD = {"share": 0.3, "every": 1, "noise_levels": 1, "most": 2}


def config(folder, cache, **more) -> RunConfig:
    """A run whose rate is so high that it gets worse on held-out images."""
    training = {
        "steps": STEPS,
        "batch_size": 1,
        "gradient_accumulation_steps": 1,
        "early_stop": 3,
        "keep_checkpoints": 1,
        "schedule": {"name": "constant", "warmup_steps": 0},
        "optimizer": {"learning_rate": 0.05},
        **more,
    }
    return run_config(folder, cache, training=training, dataset={"validation": HELD})


@pytest.fixture(scope="module")
def ended_and_said(tmp_path_factory, cache):
    observer = CancelAfter(10**9)
    return train(config(tmp_path_factory.mktemp("ended"), cache), observer), said_of_base(observer)


@pytest.fixture(scope="module")
def ended(ended_and_said):
    return ended_and_said[0]


def said_of_base(observer: CancelAfter) -> list[str]:
    warned = [each.message for each in observer.events if isinstance(each, Warned)]
    return [each for each in warned if "never better than the base" in each]


def held_out(folder: Path) -> dict[int, float]:
    return {m["step"]: m["validation_loss"] for m in metrics(folder) if "validation_loss" in m}


def record(folder: Path) -> dict:
    return json.loads((folder / "run.json").read_text())


def expected_end(losses: dict[int, float], patience: int) -> tuple[int, int]:
    """Best step and last step, from the definition."""
    steps = sorted(step for step in losses if step)
    for last in steps:
        seen = [step for step in steps if step <= last]
        best = min(seen, key=lambda step: (losses[step], step))
        if sum(step > best for step in seen) >= patience:
            return best, last
    return min(steps, key=lambda step: (losses[step], step)), steps[-1]


def test_it_ends_when_it_gets_no_better_and_says_so(ended):
    best, last = expected_end(held_out(ended.folder), 3)
    assert last < STEPS, "the run did not get worse"
    assert (ended.status, ended.step) == ("done", last)
    assert f"step {best}" in ended.stopped_early
    assert ended.best is not None
    assert ended.best.step == best
    assert ended.best.loss == held_out(ended.folder)[best]
    found = record(ended.folder)
    assert (found["status"], found["stopped_by"]) == ("done", "training.early_stop")
    assert found["best"] == {"step": best, "loss": ended.best.loss}


def test_the_best_checkpoint_stays_beside_the_newest(ended):
    steps = [int(path.name) for path in checkpoint_folders(ended.folder / "checkpoints")]
    assert steps == sorted({ended.best.step, ended.step})
    assert ended.best.adapter.is_file()
    root = ended.folder.parent
    asked = RunConfig.model_validate(
        {"output": {"dir": str(root.parent), "name": root.name}, "resume": "best"}
    )
    assert find_checkpoint(asked) == ended.best.adapter.parent


def test_both_losses_are_written_down(ended):
    lines = [m for m in metrics(ended.folder) if "validation_loss" in m]
    assert [m["step"] for m in lines] == list(range(ended.step + 1))
    assert all("trained_loss" in m for m in lines)


def test_it_says_that_it_was_never_better_than_the_base(ended_and_said):
    ended, said = ended_and_said
    losses = held_out(ended.folder)
    assert losses[0] < ended.best.loss
    (line,) = said
    assert f"{losses[0]:.4g} before the first step" in line
    assert f"{ended.best.loss:.4g} at its lowest, at step {ended.best.step}" in line


def test_an_ended_run_ends_again_until_it_is_told_otherwise(tmp_path, cache, ended):
    shutil.copytree(ended.folder.parent, tmp_path / "run")
    again = train(config(tmp_path, cache).model_copy(update={"resume": "latest"}))
    assert (again.step, again.stopped_early) == (ended.step, ended.stopped_early)
    longer = config(tmp_path, cache, early_stop=0).model_copy(update={"resume": "latest"})
    assert train(longer).step == STEPS


def test_stopped_and_resumed_it_ends_at_the_same_step_with_the_same_bits(
    tmp_path, cache, ended_and_said
):
    ended, said = ended_and_said
    stops = CancelAfter(ended.step - 1)
    first = train(config(tmp_path, cache), stops)
    assert first.status == "cancelled"
    assert first.step < ended.step
    assert not said_of_base(stops), "it may become better yet"
    hears = CancelAfter(10**9)
    resumed = train(config(tmp_path, cache).model_copy(update={"resume": "latest"}), hears)
    assert said_of_base(hears) == said
    assert (resumed.status, resumed.step) == ("done", ended.step)
    assert resumed.stopped_early == ended.stopped_early
    assert resumed.best.step == ended.best.step
    assert resumed.best.loss == ended.best.loss
    one, other = tensors(resumed.adapters[0]), tensors(ended.adapters[0])
    assert all(torch.equal(one[name], other[name]) for name in other)
    assert read_ledger(resumed.folder) == read_ledger(ended.folder)


def test_the_verb_ledger_lists_the_worst_images_first(ended, capsys):
    rows = read_ledger(ended.folder)["images"]
    for place in (ended.folder, ended.folder.parent, ended.folder / "run.yaml"):
        assert main(["ledger", str(place), "--most", "2", "--json"]) == 0
        said = json.loads(capsys.readouterr().out)
        assert Path(said["folder"]) == ended.folder
        assert said["images"] == rows[:2]
    assert main(["ledger", str(ended.folder)]) == 0
    shown = capsys.readouterr().out.splitlines()
    assert [line.split()[-1] for line in shown[2:]] == [each["name"] for each in rows]


def test_what_has_no_ledger_is_named(tmp_path, ended, capsys):
    copied = tmp_path / "run" / "v0"
    shutil.copytree(ended.folder, copied)
    (copied / "ledger.json").unlink()
    for place, found in ((copied, "has no ledger.json"), (tmp_path, "is not a run")):
        assert main(["ledger", str(place)]) == 2
        assert found in capsys.readouterr().err


def test_sample_takes_the_best_checkpoint(tmp_path, ended, capsys):
    assert ended.best.step < ended.step
    asked = [str(ended.folder / "run.yaml"), "preview.prompts=[a red diamond]", "steps=2"]
    asked += ["width=32", "height=32", "--json"]
    images = {}
    for name in ("best", str(ended.best.adapter), str(ended.adapters[0])):
        folder = tmp_path / str(len(images))
        assert main(["sample", *asked, f"adapter={name}", f"output={folder}"]) == 0
        (line,) = capsys.readouterr().out.splitlines()
        with Image.open(json.loads(line)["path"]) as image:
            images[name] = np.asarray(image).copy()
    best, same, last = images.values()
    assert (best == same).all()
    assert (best != last).any()


def test_sample_refuses_best_without_held_out_images(tmp_path, ended, capsys):
    asked = [str(ended.folder / "run.yaml"), "adapter=best", f"output.dir={tmp_path}"]
    assert main(["sample", *asked, "prompt=x"]) == 2
    assert "held-out images" in capsys.readouterr().err


class StopsAtOnce(SilentObserver):
    """Is told to stop between the start of a run and its first step."""

    started = False

    def notify(self, event):
        self.started = self.started or isinstance(event, RunStarted)

    def cancelled(self) -> bool:
        return self.started


def test_a_state_that_was_not_measured_is_not_the_best(tmp_path, cache):
    """Neither told nor kept: a run that stops before its first step saves step 0."""
    training = {"checkpoint_every": 1, "keep_checkpoints": 1, "steps": 2}
    asked = run_config(tmp_path, cache, training=training)
    stopped = train(asked, StopsAtOnce())
    assert (stopped.status, stopped.step, stopped.best) == ("cancelled", 0, None)
    assert [each.name for each in checkpoint_folders(stopped.folder / "checkpoints")] == ["000000"]
    ended = train(asked.model_copy(update={"resume": "latest"}))
    assert (ended.status, ended.best) == ("done", None)
    assert [each.name for each in checkpoint_folders(ended.folder / "checkpoints")] == ["000002"]


class Ends(SilentObserver):
    """Asks for an end during a step, by a signal or by the panel's button."""

    def __init__(self, step: int, *, cancel: bool) -> None:
        self.step, self.cancel, self.heard = step, cancel, False

    def notify(self, event):
        self.heard |= isinstance(event, StepDone) and event.result.step == self.step - 1

    def requests(self) -> RunRequests:
        return RunRequests(cancel=self.heard and self.cancel, stop=self.heard and not self.cancel)

    def cancelled(self) -> bool:
        return self.heard and self.cancel


def test_a_measurement_that_a_signal_gave_up_is_made_up_for(tmp_path, cache, ended):
    for step in (ended.best.step + 1, ended.step):
        folder = tmp_path / str(step)
        first = train(config(folder, cache), Ends(step, cancel=True))
        assert (first.status, first.step) == ("cancelled", step)
        assert step not in held_out(first.folder), "it was measured all the same"
        resumed = train(config(folder, cache).model_copy(update={"resume": "latest"}))
        assert (resumed.status, resumed.step) == ("done", ended.step)
        assert (resumed.best.step, resumed.best.loss) == (ended.best.step, ended.best.loss)
        assert resumed.stopped_early == ended.stopped_early
        assert metrics(resumed.folder) == metrics(ended.folder)


class FailsWhileMeasuring(SilentObserver):
    """Fails at what it is asked between the passes of a measurement."""

    def __init__(self, step: int) -> None:
        self.step, self.done = step, 0

    def notify(self, event):
        self.done = event.result.step if isinstance(event, StepDone) else self.done

    def requests(self) -> RunRequests:
        return RunRequests()

    def cancelled(self) -> bool:
        if self.done == self.step - 1:
            raise ValueError("a cable that came loose")
        return False


def test_a_step_whose_measurement_fails_is_written_and_goes_on_from_there(tmp_path, cache, ended):
    with pytest.raises(ValueError, match="cable"):
        train(config(tmp_path, cache), FailsWhileMeasuring(ended.step))
    folder = tmp_path / "run" / "v0"
    assert int(checkpoint_folders(folder / "checkpoints")[-1].name) == ended.step
    lines, whole = metrics(folder), metrics(ended.folder)
    measured = {"validation_loss", "trained_loss"}
    last = {name: value for name, value in whole[-1].items() if name not in measured}
    assert lines == [*whole[:-1], last]
    resumed = train(config(tmp_path, cache).model_copy(update={"resume": "latest"}))
    assert (resumed.folder, resumed.step) == (folder, ended.step)
    assert metrics(folder) == whole


@pytest.mark.exhaustive
def test_the_last_step_is_measured_late_also_where_its_number_is_none_of_the_interval(
    tmp_path, cache
):
    def short(folder):
        held = {**HELD, "every": 3}
        return run_config(folder, cache, training={"steps": 5}, dataset={"validation": held})

    whole = train(short(tmp_path / "whole"))
    with pytest.raises(ValueError, match="cable"):
        train(short(tmp_path / "parts"), FailsWhileMeasuring(5))
    resumed = train(short(tmp_path / "parts").model_copy(update={"resume": "latest"}))
    assert metrics(resumed.folder) == metrics(whole.folder)
    assert (resumed.best.step, resumed.best.loss) == (whole.best.step, whole.best.loss)


class SeesWhatIsNamed(CancelAfter):
    """Looks which checkpoint is the best one whenever one is saved."""

    def __init__(self, version: Path, last: int = 10**9) -> None:
        super().__init__(last)
        self.version, self.seen = version, []

    def notify(self, event):
        super().notify(event)
        if isinstance(event, RunStarted | CheckpointSaved):
            named = record(self.version).get("best")
            assert named is None or named["step"] == best_step(self.version)
            self.seen.append(named and named["step"])


@pytest.mark.exhaustive
def test_a_resume_from_an_earlier_state_names_no_checkpoint_that_it_removed(tmp_path, cache):
    """The best one of the first course, and the one that was best at the earlier state, are gone.

    At this rate the loss falls again after it has risen.
    """
    wild = {"early_stop": 0, "checkpoint_every": 4, "keep_every": 4}
    wild["optimizer"] = {"learning_rate": 0.2}
    first = train(config(tmp_path, cache, **wild))
    assert first.best.step == STEPS
    version = first.folder
    steps = [int(each.name) for each in checkpoint_folders(version / "checkpoints")]
    assert steps == [4, 8, STEPS]
    losses = held_out(version)
    assert losses[4] > losses[1], "the best one at step 4 was an earlier one"
    observer = SeesWhatIsNamed(version, 6)
    worse = wild | {"optimizer": {"learning_rate": 2.0}}
    again = train(config(tmp_path, cache, **worse).model_copy(update={"resume": "4"}), observer)
    assert observer.seen[0] == 4
    assert again.best is not None
    assert again.best.step == observer.seen[-1] == record(version)["best"]["step"]
    kept = {int(each.name) for each in checkpoint_folders(version / "checkpoints")}
    assert again.best.loss == min(held_out(version)[step] for step in kept)


def test_a_ledger_that_died_with_its_run_is_written_by_the_next_one(tmp_path, cache):
    """Killed behind its last checkpoint and before the ledger's file."""
    run = train(config(tmp_path, cache, steps=2))
    place = run.folder / "ledger.json"
    whole = place.read_bytes()
    place.write_text('{"step": 1, "measured": 0, "images": []}')
    again = train(config(tmp_path, cache, steps=2).model_copy(update={"resume": "latest"}))
    assert again.folder == run.folder
    assert place.read_bytes() == whole


def test_what_is_measured_only_because_a_run_ends_does_not_count_as_missed(tmp_path, cache):
    def every_other(folder):
        run = config(folder, cache, early_stop=2)
        held = run.dataset.validation.model_copy(update={"every": 2})
        return run.model_copy(
            update={"dataset": run.dataset.model_copy(update={"validation": held})}
        )

    whole = train(every_other(tmp_path / "whole"))
    assert whole.step < STEPS, "the run did not get worse"
    folder = tmp_path / "parts"
    first = train(every_other(folder), Ends(whole.step - 1, cancel=False))
    assert (first.status, first.step) == ("done", whole.step - 1)
    assert whole.step - 1 in held_out(first.folder), "its end was not measured"
    resumed = train(every_other(folder).model_copy(update={"resume": "latest"}))
    assert resumed.step == whole.step


def test_without_a_measured_run_best_is_refused(tmp_path):
    asked = {"output": {"dir": str(tmp_path), "name": "run"}, "resume": "best"}
    with pytest.raises(ConfigError, match="best") as error:
        find_checkpoint(RunConfig.model_validate(asked))
    assert "dataset.validation.share" in error.value.expected


class KillsItself(SilentObserver):
    """Dies like a computer whose plug is pulled, behind a step."""

    def __init__(self, step: int) -> None:
        self.step = step

    def notify(self, event):
        if isinstance(event, StepDone) and event.result.step == self.step:
            os.kill(os.getpid(), signal.SIGKILL)

    def requests(self) -> RunRequests:
        return RunRequests()


@pytest.mark.exhaustive
def test_killed_anywhere_it_ends_the_same(tmp_path, cache, ended):
    for step in range(1, ended.step + 1):
        folder = tmp_path / str(step)
        child = os.fork()
        if not child:
            train(config(folder, cache), KillsItself(step))
            os._exit(3)
        assert os.WIFSIGNALED(os.waitpid(child, 0)[1])
        resumed = train(config(folder, cache).model_copy(update={"resume": "auto"}))
        assert (resumed.step, resumed.best.step) == (ended.step, ended.best.step)
        assert read_ledger(resumed.folder) == read_ledger(ended.folder)
        one, other = tensors(resumed.adapters[0]), tensors(ended.adapters[0])
        assert all(torch.equal(one[name], other[name]) for name in other)


@pytest.mark.exhaustive
def test_a_clock_checkpoint_and_kept_multiples(tmp_path, cache, monkeypatch):
    from trainer_core.training import run_loop
    from trainer_core.training.checkpoint_rules import CheckpointClock

    ticks = itertools.count(0.0, 60.0)
    monkeypatch.setattr(
        run_loop, "CheckpointClock", lambda minutes: CheckpointClock(minutes, lambda: next(ticks))
    )
    run = run_config(
        tmp_path,
        cache,
        training={
            "steps": 9,
            "checkpoint_every": 2,
            "keep_every": 4,
            "keep_checkpoints": 1,
            "checkpoint_minutes": 2.5,
        },
    )
    result = train(run)
    steps = [int(path.name) for path in checkpoint_folders(result.folder / "checkpoints")]
    assert steps == [4, 8, 9]


@pytest.mark.exhaustive
@pytest.mark.parametrize("seed", range(3))
def test_an_image_of_noise_is_found(tmp_path, seed):
    folder = tmp_path / "data"
    shutil.copytree(dataset_folder("generate"), folder)
    names = sorted(path.name for path in folder.glob("[0-9]*.png"))
    broken = names[5 * seed + 2]
    with Image.open(folder / broken) as image:
        size = (*image.size[::-1], 3)
    noise = np.random.default_rng(seed).integers(0, 256, size, dtype=np.uint8)
    Image.fromarray(noise).save(folder / broken)
    run = run_config(tmp_path, tmp_path / "cache", dataset={"path": str(folder)}, seed=seed)
    training = run.training.model_copy(update={"steps": 60})
    result = train(run.model_copy(update={"training": training}))
    first, second, *_ = read_ledger(result.folder)["images"]
    assert first["name"] == broken
    assert first["ratio"] > 1.3 * second["ratio"]
