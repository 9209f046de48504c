"""A run goes on with other settings: what may change, what is said of it, what is recorded."""

import math
import re

import pytest
from faults import BREAKS, BROKEN, overflowing
from runs import CancelAfter, merge, metrics, record, run_config, tensors

from tests.fixtures.combinations import some
from trainer_core.config.read_run_file import dump_config, load_config
from trainer_core.errors import ConfigError, NonFiniteError
from trainer_core.training import train
from trainer_core.training.observer import StepDone
from trainer_core.training.step.learning_rate import make_schedule

LOWER = {"training": {"optimizer": {"learning_rate": 8e-4}}}


def breaks(config):
    """The remedy of a run that breaks."""
    with overflowing(), pytest.raises(NonFiniteError) as error:
        train(config)
    assert f"of step {BROKEN} is not" in error.value.found
    return error.value.remedy


def followed(config, remedy, tmp_path, observer=None):
    """Train with the words that a remedy names, as the command line reads them."""
    file = tmp_path / "run.yaml"
    file.write_text(dump_config(config), encoding="utf-8")
    words = re.findall(r"(?<!\S)(?:resume|training\.\S+)=[\w./+-]*\w", remedy)
    assert [word.split("=")[0] for word in words] == [
        "resume",
        "training.optimizer.learning_rate",
    ], remedy
    with overflowing():
        return train(load_config(file, words), observer)


def test_a_run_that_breaks_goes_on_from_the_checkpoint_that_its_remedy_names(tmp_path, cache):
    config = run_config(tmp_path, cache, **BREAKS)
    remedy = breaks(config)
    version = tmp_path / "run" / "v0"
    assert record(version)["non_finite"] == {"step": BROKEN, "precision": "fp32"}
    saved = sorted(int(path.name) for path in (version / "checkpoints").iterdir())
    assert saved == [2, BROKEN - 1], "the state before is lost"
    observer = CancelAfter()
    result = followed(config, remedy, tmp_path, observer)
    assert (result.status, result.step, result.folder) == ("done", 8, version)
    assert all(map(math.isfinite, result.losses))
    change = {"step": 2, "setting": "training.optimizer.learning_rate", "from": 8e-3, "to": 8e-4}
    assert record(version)["changes"] == [change]
    assert "non_finite" not in record(version)
    (said,) = [text for text in observer.said() if "goes on from" in text]
    assert "from step 2 changed: training.optimizer.learning_rate was 0.008 and is 0.0008" in said


def test_a_run_that_breaks_before_its_first_checkpoint_starts_anew(tmp_path, cache):
    never = merge(BREAKS, {"training": {"checkpoint_every": 0}})
    config = run_config(tmp_path, cache, **never)
    remedy = breaks(config)
    assert "switch resume off" in remedy
    # What a graph does: the rate is lowered, and it is run again.
    lower = train(run_config(tmp_path, cache, resume="auto", **merge(never, LOWER)))
    assert (lower.status, lower.folder.name) == ("done", "v1")
    result = followed(config, remedy, tmp_path)
    assert (result.status, result.folder.name) == ("done", "v2")


def test_auto_goes_on_from_a_state_that_may_go_well(tmp_path, cache):
    breaks(run_config(tmp_path, cache, **BREAKS))
    result = train(run_config(tmp_path, cache, resume="auto", **merge(BREAKS, LOWER)))
    assert (result.status, result.folder.name) == ("done", "v0")


SHORT = {"steps": 6, "checkpoint_every": 3, "schedule": {"name": "constant", "warmup_steps": 0}}
OTHER_COURSE = {
    "max_grad_norm": 0.5,
    "schedule": {"name": "cosine", "warmup_steps": 0},
    "optimizer": {"learning_rate": 1e-4, "beta1": 0.8, "rate_pattern": {r".*\.0\..*": 0.5}},
}


@pytest.mark.parametrize("resume", some(["latest", "auto"], "latest"))
def test_the_course_changes_from_the_checkpoint_on(tmp_path, cache, resume):
    first = train(run_config(tmp_path, cache, training=SHORT), CancelAfter(4))
    assert first.status == "cancelled"
    before = tensors(first.folder / "checkpoints" / "000004" / "training_state.safetensors")
    changed = {**SHORT, **OTHER_COURSE, "steps": 8, "keep_checkpoints": 9}
    observer = CancelAfter()
    config = run_config(tmp_path, cache, training=changed, resume=resume)
    again = train(config, observer)
    assert (again.folder, again.step) == (first.folder, 8)
    told = {change["setting"]: change for change in record(again.folder)["changes"]}
    assert told.keys() == {
        "training.keep_checkpoints",
        "training.max_grad_norm",
        "training.optimizer.beta1",
        "training.optimizer.learning_rate",
        "training.optimizer.rate_pattern",
        "training.schedule.name",
        "training.steps",
    }
    assert {change["step"] for change in told.values()} == {4}
    assert told["training.optimizer.learning_rate"]["to"] == 1e-4
    (said,) = [text for text in observer.said() if "goes on from step 4 changed" in text]
    assert all(setting in said for setting in told)
    # The rate follows the new schedule at the step of the whole run.
    schedule = make_schedule(config.training.schedule, 8)
    rates = [entry["learning_rate"] for entry in metrics(again.folder)]
    assert rates == [1e-3] * 4 + [1e-4 * schedule(step) for step in range(5, 9)]
    # The optimizer went on from its state, although its parameters are in other groups now.
    after = tensors(again.folder / "checkpoints" / "000006" / "training_state.safetensors")
    steps = {float(value) for key, value in after.items() if key.endswith(".step")}
    assert steps == {6.0}
    of_groups = re.compile(r"optimizer\.(.*\.)?group\.")
    assert {k for k in before if not of_groups.match(k)} == {
        k for k in after if not of_groups.match(k)
    }


def test_the_version_that_the_settings_belong_to_goes_on(tmp_path, cache):
    """Whichever of a name it is: a finished one is not trained again, a longer one stays longer."""
    rate = {"optimizer": {"learning_rate": 1e-4}}
    for change, resume, version, step, steps_made in (
        ({}, "auto", "v0", 2, 2),
        ({"seed": 8}, "auto", "v1", 2, 2),
        ({}, "auto", "v0", 2, 0),
        (rate, "auto", "v2", 2, 2),
        ({"seed": 8, "steps": 3}, "auto", "v1", 3, 1),
        ({"seed": 8}, "auto", "v3", 2, 2),
        # The settings of v2 with the course of v0: v0 is finished, and v2 is not the newest.
        ({}, "auto", "v0", 2, 0),
        # Whoever names a run makes it longer, and its settings stay.
        ({"steps": 3}, "v0", "v0", 3, 1),
        ({}, "auto", "v0", 3, 0),
        ({"steps": 4}, "auto", "v0", 4, 1),
        ({}, "auto", "v4", 2, 2),
    ):
        own = {**SHORT, "steps": 2, **{k: v for k, v in change.items() if k != "seed"}}
        resume = resume if resume == "auto" else str(tmp_path / "run" / resume)
        seed = change.get("seed", 7)
        config = run_config(tmp_path, cache, training=own, resume=resume, seed=seed)
        observer = CancelAfter()
        result = train(config, observer)
        assert (result.folder.name, result.step) == (version, step), change
        made = sum(isinstance(each, StepDone) for each in observer.events)
        assert made == steps_made, change


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"seed": 8}, "seed was 7 and is 8"),
        ({"training": {**SHORT, "batch_size": 1}}, r"training\.batch_size was 2 and is 1"),
        (
            {"training": {**SHORT, "precision": "bf16"}, "dataset": {"resolution": 32}},
            r"dataset\.resolution was \d+ and is 32",
        ),
        (
            {
                "training": {**SHORT, "precision": "bf16"},
                "dataset": {"path": "trainer_core/assets/demo-own"},
            },
            "the images, their captions or their sizes",
        ),
    ],
)
def test_what_decides_which_run_it_is_may_not(tmp_path, cache, change, named):
    train(run_config(tmp_path, cache, training={**SHORT, "steps": 1}))
    with pytest.raises(ConfigError, match=named):
        train(run_config(tmp_path, cache, **{"training": SHORT, **change}, resume="latest"))
