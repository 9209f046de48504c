"""A run goes on with other settings: what may change, what is said of it, what is recorded."""

from __future__ import annotations

import json
import math
import re
import shutil

import pytest
from runs import CancelAfter, metrics, run_config, tensors

from tests.fixtures.combinations import some
from trainer_core.config.reading import dump_config, load_config
from trainer_core.errors import ConfigError, NonFiniteError
from trainer_core.training import train
from trainer_core.training.schedules import make_schedule

# The scale is so large that the rate at which warm-up arrives drives the loss out of all numbers.
BREAKS = {
    "adapter": {"kind": "lora", "dropout": 0.0, "alpha": 1e8},
    "training": {
        "steps": 24,
        "batch_size": 1,
        "gradient_accumulation_steps": 1,
        "checkpoint_every": 4,
        "schedule": {"name": "constant", "warmup_steps": 20},
        "optimizer": {"learning_rate": 1.0},
        "recovery": {"skips": 0, "returns": 0},
    },
}


def record(folder):
    return json.loads((folder / "run.json").read_text(encoding="utf-8"))


def warnings(observer):
    return [
        event.message for event in observer.events if type(event).__name__ in {"Warned", "Noted"}
    ]


def breaks(config):
    """The remedy of a run that breaks, and the step that broke."""
    with pytest.raises(NonFiniteError) as error:
        train(config)
    return error.value.remedy, int(re.search(r"of step (\d+) is not", error.value.found)[1])


def followed(config, remedy, tmp_path):
    """The run file with the words that a remedy names, as the command line reads them."""
    file = tmp_path / "run.yaml"
    file.write_text(dump_config(config), encoding="utf-8")
    words = re.findall(r"(?<!\S)(?:resume|training\.\S+)=[\w./+-]*\w", remedy)
    assert [word.split("=")[0] for word in words] == [
        "resume",
        "training.optimizer.learning_rate",
    ], remedy
    return load_config(file, words)


def test_a_run_that_breaks_goes_on_from_the_checkpoint_that_its_remedy_names(tmp_path, cache):
    config = run_config(tmp_path, cache, **BREAKS)
    remedy, broken = breaks(config)
    assert broken > 8, "there has to be more than one checkpoint before it"
    version = tmp_path / "run" / "v0"
    assert record(version)["non_finite"] == {"step": broken, "precision": "fp32"}
    saved = sorted(int(path.name) for path in (version / "checkpoints").iterdir())
    assert saved[-1] == broken - 1, "the state before is lost"
    good = max(step for step in saved if step < broken - 1)
    observer = CancelAfter(99)
    result = train(followed(config, remedy, tmp_path), observer)
    assert (result.status, result.step, result.folder) == ("done", 24, version)
    assert all(map(math.isfinite, result.losses))
    change = {
        "step": good,
        "setting": "training.optimizer.learning_rate",
        "from": 1.0,
        "to": 0.1,
    }
    assert record(version)["changes"] == [change]
    assert "non_finite" not in record(version)
    (said,) = [text for text in warnings(observer) if "goes on from" in text]
    assert said == (
        f"run/v0 goes on from step {good} changed: training.optimizer.learning_rate was 1.0 and "
        "is 0.1."
    )


def test_a_run_that_breaks_once_more_is_sent_further_back(tmp_path, cache):
    config = run_config(tmp_path, cache, **BREAKS)
    _, broken = breaks(config)
    # Nothing was changed, so it meets the same numbers.
    remedy, again = breaks(config.model_copy(update={"resume": "latest"}))
    assert again == broken
    step = int(re.search(r"resume=(\d+) ", remedy)[1])
    assert step < broken - 5
    assert f"run/v0/{step:06d} as resume_from" in remedy
    result = train(followed(config, remedy, tmp_path))
    assert (result.status, result.step, result.folder.name) == ("done", 24, "v0")
    assert record(result.folder)["changes"][0]["step"] == step


def test_a_run_that_breaks_before_its_first_checkpoint_starts_anew(tmp_path, cache):
    config = run_config(tmp_path, cache, **BREAKS)
    training = config.training.model_copy(update={"checkpoint_every": 0})
    config = config.model_copy(update={"training": training})
    remedy, _ = breaks(config)
    assert "switch resume off" in remedy
    result = train(followed(config, remedy, tmp_path))
    assert (result.status, result.folder.name) == ("done", "v1")


def test_auto_goes_on_from_a_state_that_may_go_well(tmp_path, cache):
    """What a graph does: the rate is lowered, and it is run again."""
    config = run_config(tmp_path, cache, **BREAKS)
    breaks(config)
    lower = {"optimizer": {"learning_rate": 0.1}}
    values = {**BREAKS, "training": {**BREAKS["training"], **lower}}
    result = train(run_config(tmp_path, cache, resume="auto", **values))
    assert (result.status, result.folder.name) == ("done", "v0")
    # And where there is none: the only checkpoint is the state before the step that broke.
    values["training"] = {**BREAKS["training"], "checkpoint_every": 0}
    breaks(run_config(tmp_path / "b", cache, **values))
    values["training"] |= lower
    again = train(run_config(tmp_path / "b", cache, resume="auto", **values))
    assert (again.status, again.folder.name) == ("done", "v1")


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
    observer = CancelAfter(99)
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
    (said,) = [text for text in warnings(observer) if "goes on from step 4 changed" in text]
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


FINISHED = {
    "as it was": ({}, "v0", 6),
    "longer": ({"steps": 8}, "v0", 8),
    "another rate": ({"optimizer": {"learning_rate": 1e-4}}, "v1", 6),
    "another rate, longer": ({"optimizer": {"learning_rate": 1e-4}, "steps": 8}, "v1", 8),
    "shorter": ({"steps": 4}, "v1", 4),
    "other checkpoints": ({"checkpoint_every": 2}, "v0", 6),
}


@pytest.mark.parametrize("name", some(FINISHED, "longer", "another rate", "shorter"))
def test_a_finished_run_under_auto(tmp_path, cache, name):
    change, version, step = FINISHED[name]
    train(run_config(tmp_path, cache, training=SHORT))
    observer = CancelAfter(99)
    settings = {**SHORT, **change}
    result = train(run_config(tmp_path, cache, training=settings, resume="auto"), observer)
    assert (result.status, result.folder.name, result.step) == ("done", version, step)
    said = " ".join(warnings(observer))
    assert ("A new version starts" in said) == (version == "v1")
    if "rate" in name:
        assert "because run/v0 is finished: training.optimizer.learning_rate was" in said
        assert "resume=latest would go on from its end" in said


def test_precision_may_change_although_the_samples_are_encoded_anew(tmp_path, cache):
    first = train(
        run_config(tmp_path, cache, training={**SHORT, "precision": "bf16"}), CancelAfter(4)
    )
    config = run_config(tmp_path, cache, training={**SHORT, "precision": "fp32"}, resume="latest")
    again = train(config)
    assert (again.folder, again.step) == (first.folder, 6)
    (change,) = record(again.folder)["changes"]
    assert (change["setting"], change["from"], change["to"]) == (
        "training.precision",
        "bf16",
        "fp32",
    )


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"seed": 8}, "seed was 7 and is 8"),
        ({"training": {**SHORT, "batch_size": 1}}, r"training\.batch_size was 2 and is 1"),
        (
            {"training": {**SHORT, "sigma": {"density": "uniform"}}},
            r"training\.sigma\.density was 'logit_normal'",
        ),
        (
            {"training": {**SHORT, "precision": "bf16"}, "dataset": {"resolution": 32}},
            "the images, their captions or their sizes",
        ),
    ],
)
def test_what_decides_which_run_it_is_may_not(tmp_path, cache, change, named):
    train(run_config(tmp_path, cache, training={**SHORT, "steps": 1}))
    with pytest.raises(ConfigError, match=named):
        train(run_config(tmp_path, cache, **{"training": SHORT, **change}, resume="latest"))


def test_a_longer_cosine_goes_on_where_it_stands_and_again_bit_for_bit(tmp_path, cache):
    short = {"steps": 4, "schedule": {"name": "cosine", "warmup_steps": 0}}
    longer = {**short, "steps": 9}
    train(run_config(tmp_path / "whole", cache, training=short))
    shutil.copytree(tmp_path / "whole", tmp_path / "cut")

    def go_on(place, observer):
        config = run_config(tmp_path / place, cache, training=longer, resume="auto")
        return train(config, observer)

    observer = CancelAfter(99)
    whole = go_on("whole", observer)
    (said,) = [text for text in warnings(observer) if "planned anew" in text]
    assert "from 0.00025 at step 5 to 0 at step 9" in said
    rates = [entry["learning_rate"] for entry in metrics(whole.folder)]
    assert rates[4] == pytest.approx(2.5e-4)
    assert sorted(rates[4:], reverse=True) == rates[4:]

    assert go_on("cut", CancelAfter(7)).status == "cancelled"
    again = CancelAfter(99)
    cut = go_on("cut", again)
    assert not [text for text in warnings(again) if "planned anew" in text]
    assert [entry["learning_rate"] for entry in metrics(cut.folder)] == rates
    ours, theirs = (tensors(result.adapters[0]) for result in (cut, whole))
    assert all((ours[name] == theirs[name]).all() for name in theirs)
