import json
from typing import get_args

import pytest
from pydantic import ValidationError

from trainer_core.config import RunConfig
from trainer_core.config.defaults import resolved_length
from trainer_core.config.run import nested, walk_settings, when_resumed
from trainer_core.config.section import Resumed, choices_of, section_of
from trainer_core.errors import ConfigError
from trainer_core.training.checkpoints.checkpoint import Checkpoint
from trainer_core.training.checkpoints.find_checkpoint import broken_step, find_checkpoint
from trainer_core.training.checkpoints.run_folder import create_version
from trainer_core.training.checkpoints.settings_changes import compared_settings, refuse_changes


def config_with(path, value):
    return RunConfig.model_validate(nested({path: value}), strict=True)


VALUES = (
    *(True, False, 0.25, 4.0, 3, 64, 4096, "elsewhere", "latest", ".caption", ["elsewhere"]),
    *([["a"]], [64], {"a.b": 2.0}, {"a.b": 2}, ["diffusers"], ["wandb"]),
    *([{"path": "more", "role": "regularization"}], [{"path": "more"}]),
)
OF_ITS_OWN = {"training.precision": "bf16", "memory.base_format": "nf4"}
"""Where the first other choice is what the run's own one becomes."""


def another_value(path, field):
    """A value of a setting that is not its default."""
    usual = field.get_default(call_default_factory=True)
    words = [each for each in choices_of(field) if each != usual]
    for value in (OF_ITS_OWN.get(path), *words, *VALUES):
        if value is not None and value != usual:
            try:
                config_with(path, value)
            except ValidationError:
                continue
            return value
    raise AssertionError(f"{path}: no other value")


OTHERS = {
    path: another_value(path, field)
    for path, field in walk_settings()
    if section_of(field) is None and path != "config_version"
}
DECIDES, COURSE, AROUND, FREE = (
    {path: value for path, value in OTHERS.items() if when_resumed(path) == kind}
    for kind in get_args(Resumed)
)
CHANGES = COURSE | AROUND


def compared(config=None, precision="fp32", base="b", dataset="d", start=None, source=None):
    return compared_settings(config or RunConfig(), precision, base, dataset, start, source)


def refused(checkpoint, settings, config):
    """`refuse_changes`, as a run calls it: its length is filled in."""
    return refuse_changes(checkpoint, settings, resolved_length(config, 40))


def test_settings_are_of_every_kind_and_keep_it():
    """What a kind means is tested below; that these are of it, here."""
    assert len(DECIDES) > 80
    assert {"seed", "dataset.folders", "adapter.rank", "training.text_encoder.rank"} < set(DECIDES)
    assert {"training.optimizer.name", "training.ema.decay", "memory.compute"} < set(COURSE)
    assert {"training.steps", "training.ema.export", "memory.plan", "output.name"} < set(AROUND)
    assert {"base.path", "cache.max_gb", "output.dir", "resume"} < set(FREE)


@pytest.mark.parametrize("path", DECIDES)
def test_a_setting_that_decides_the_weights_is_compared_and_named(path):
    before, after = compared(), compared(config_with(path, DECIDES[path]))
    assert {name for name in before if before[name] != after[name]} == {path}
    assert before.keys() == after.keys()
    with pytest.raises(ConfigError) as caught:
        refused(Checkpoint(1, before, {}), after, RunConfig())
    was, now = (
        text if len(text) <= 80 else f"{text[:80]}..."
        for text in (repr(before[path]), repr(after[path]))
    )
    assert f"{path} was {was} and is {now}" in caught.value.found
    assert "resume=none" in caught.value.remedy


@pytest.mark.parametrize("path", CHANGES)
def test_a_setting_that_may_change_is_told_with_both_values(path):
    config = config_with(path, CHANGES[path])
    precision = "bf16" if path == "training.precision" else "fp32"
    before, after = compared(), compared(config, precision)
    # A run of any length goes on: the one that is resumed has made one step.
    (change,) = refused(Checkpoint(1, before, {}), after, config)
    assert (change.setting, change.before, change.after) == (path, before[path], after[path])
    assert change.after == CHANGES[path]
    assert f"{path} was {before[path]!r} and is {CHANGES[path]!r}" == str(change)
    assert change.of_course == (path in COURSE)


@pytest.mark.parametrize("path", FREE)
def test_a_free_setting_may_change(path):
    changed = config_with(path, FREE[path])
    assert changed != RunConfig(), "the value is the default"
    assert compared(changed) == compared()
    refused(Checkpoint(1, compared(), {}), compared(changed), changed)


@pytest.mark.parametrize(
    ("change", "fits"),
    [
        ({"precision": "bf16", "dataset": "d in bf16", "source": "s"}, True),
        ({"precision": "bf16", "dataset": "d in bf16", "source": "other"}, False),
        ({"precision": "bf16", "dataset": "d in bf16", "source": None}, False),
        ({"precision": "fp32", "dataset": "e", "source": "s"}, False),
    ],
)
def test_in_another_precision_the_dataset_is_known_by_its_source(change, fits):
    checkpoint = Checkpoint(1, compared(source="s"), {})
    if fits:
        (told,) = refused(checkpoint, compared(**change), RunConfig())
        assert told.setting == "training.precision"
        return
    with pytest.raises(ConfigError, match=r"dataset \(content\) was"):
        refused(checkpoint, compared(**change), RunConfig())


@pytest.mark.parametrize(("made", "wanted", "fits"), [(5, 5, True), (5, 6, True), (6, 5, False)])
def test_a_run_cannot_be_shorter_than_its_checkpoint(made, wanted, fits):
    config = config_with("training.steps", wanted)
    checkpoint = Checkpoint(made, compared(), {})
    if fits:
        refused(checkpoint, compared(config), config)
        return
    with pytest.raises(ConfigError) as caught:
        refused(checkpoint, compared(config), config)
    assert "training.steps: 5, but the checkpoint has made 6 steps" in caught.value.found


@pytest.fixture
def make_version(tmp_path):
    """Make the next version of the run, with checkpoints at some steps."""

    def make(*steps, live=False):
        folder = create_version(tmp_path / "run", {"step": 100}, "seed: 0\n")
        for step in steps:
            path = folder.checkpoints / f"{step:06d}"
            path.mkdir(parents=True)
            (path / "state.json").write_text("{}")
        if not live:
            folder.release()
        return folder.path

    return make


def found(tmp_path, resume):
    output = {"dir": str(tmp_path), "name": "run"}
    return find_checkpoint(RunConfig.model_validate({"output": output, "resume": str(resume)}))


@pytest.mark.parametrize("resume", ["latest", "auto"])
def test_the_newest_checkpoint_of_the_newest_version_that_has_one(tmp_path, make_version, resume):
    make_version(900)
    newest = make_version(5, 10, 1_000_000)
    make_version()
    assert found(tmp_path, resume) == newest / "checkpoints" / "1000000"


@pytest.mark.parametrize("versions", [0, 1])
def test_without_a_checkpoint_auto_starts_and_latest_is_refused(tmp_path, make_version, versions):
    for _ in range(versions):
        make_version()
    assert found(tmp_path, "auto") is None
    with pytest.raises(ConfigError) as caught:
        found(tmp_path, "latest")
    assert str(tmp_path / "run") in caught.value.found
    assert "resume=none" in caught.value.remedy


def test_a_path_names_a_checkpoint_a_version_or_its_checkpoints(tmp_path, make_version):
    version = make_version(5, 10)
    newest = version / "checkpoints" / "000010"
    assert found(tmp_path, version / "checkpoints" / "000005").name == "000005"
    assert found(tmp_path, version) == found(tmp_path, version / "checkpoints") == newest


def test_a_number_names_the_checkpoint_of_a_step_in_the_newest_version_that_has_it(
    tmp_path, make_version
):
    older, newer = make_version(5, 10), make_version(10, 20)
    assert found(tmp_path, "5") == older / "checkpoints" / "000005"
    assert found(tmp_path, "000010") == newer / "checkpoints" / "000010"
    with pytest.raises(ConfigError, match="no checkpoint of step 7"):
        found(tmp_path, "7")


def test_where_nothing_else_is_left_auto_looks_further_and_latest_takes_it(tmp_path, make_version):
    record_broken(make_version(14), 15)
    assert found(tmp_path, "auto") is None
    make_version(3)
    record_broken(make_version(14), 15)
    assert found(tmp_path, "auto").name == "000003"
    assert found(tmp_path, "latest").name == "000014"
    assert found(tmp_path, "14").name == "000014"


def record_broken(version, step):
    path = version / "run.json"
    record = json.loads(path.read_text())
    path.write_text(json.dumps({**record, "non_finite": broken_step(step, "fp32", step)}))


@pytest.mark.parametrize("kind", ["absent", "file", "empty folder", "run of versions"])
def test_a_path_without_a_checkpoint_is_refused(tmp_path, make_version, kind):
    make_version(5)
    path = tmp_path / "x"
    if kind == "file":
        path.write_text("x")
    elif kind == "empty folder":
        path.mkdir()
    elif kind == "run of versions":
        path = tmp_path / "run"
    with pytest.raises(ConfigError) as caught:
        found(tmp_path, path)
    assert f"resume: {path} is not a checkpoint" in caught.value.found
    assert "'latest'" in caught.value.expected
