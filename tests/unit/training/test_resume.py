import json

import pytest
from pydantic import BaseModel

from trainer_core.config import RunConfig
from trainer_core.errors import ConfigError
from trainer_core.training.checkpoint import Checkpoint
from trainer_core.training.resume import deciding_settings, find_checkpoint, refuse_changes
from trainer_core.training.run_folder import create_version

# Another value for every setting. A new setting belongs in one of the two tables: does another
# value of it, between a run and its resumption, change the weights?
DECIDES = {
    "family": "flux",
    "base.variant": "edit",
    "base.text_length": 77,
    "dataset.layout": "flat",
    "dataset.caption_extension": ".caption",
    "dataset.animated": "first_frame",
    "dataset.trigger_word": "ohwx",
    "dataset.num_repeats": 2,
    "dataset.caption_dropout": 0.5,
    "dataset.resolution": 512,
    "dataset.max_aspect_ratio": 2.0,
    "dataset.upscale": True,
    "dataset.control_area": 4096,
    "adapter.kind": "loha",
    "adapter.rank": 3,
    "adapter.alpha": 2.5,
    "adapter.targets": ["a", "b"],
    "adapter.include": ["a"],
    "adapter.exclude": ["b"],
    "adapter.rank_pattern": {"a.b": 2},
    "adapter.alpha_pattern": {"a.b": 2.0},
    "adapter.factor": 4,
    "adapter.full_matrix": True,
    "adapter.decompose_both": True,
    "adapter.dropout": 0.1,
    "adapter.rank_dropout": 0.1,
    "adapter.rank_dropout_scale": False,
    "adapter.module_dropout": 0.1,
    "adapter.rslora": True,
    "adapter.dora": True,
    "adapter.dora_axis": "output",
    "adapter.exact_delta": True,
    "adapter.unbalanced": True,
    "adapter.tucker": True,
    "adapter.init": "gaussian",
    "training.batch_size": 2,
    "training.gradient_accumulation_steps": 2,
    "training.max_grad_norm": 0.5,
    "training.guidance": 3.5,
    "training.optimizer.learning_rate": 0.01,
    "training.optimizer.beta1": 0.5,
    "training.optimizer.beta2": 0.5,
    "training.optimizer.eps": 0.001,
    "training.optimizer.weight_decay": 0.5,
    "training.optimizer.lora_plus_ratio": 16.0,
    "training.optimizer.rate_pattern": {"a.b": 2.0},
    "training.schedule.name": "cosine",
    "training.schedule.warmup_steps": 3,
    "training.schedule.min_ratio": 0.5,
    "training.sigma.density": "uniform",
    "training.sigma.mean": 0.5,
    "training.sigma.std": 0.5,
    "training.sigma.shift": 3.0,
    "training.sigma.min": 0.25,
    "training.sigma.max": 0.75,
    "seed": 5,
}
FREE = {
    "adapter.start_from": "first.safetensors",
    "base.path": "elsewhere",
    "base.encoders": "elsewhere",
    "dataset.path": "elsewhere",
    "dataset.missing_caption": "skip",
    "dataset.missing_image": "skip",
    "dataset.missing_control": "skip",
    "dataset.unreadable": "skip",
    "cache.dir": "elsewhere",
    "cache.manifest": "elsewhere/manifest.json",
    "cache.verify": True,
    "training.steps": 5,
    "training.checkpoint_every": 5,
    "training.keep_checkpoints": 5,
    "preview.every": 5,
    "preview.prompts": ["a"],
    "preview.controls": [["a.png"]],
    "preview.width": 64,
    "preview.height": 64,
    "preview.steps": 5,
    "preview.guidance": 3.0,
    "preview.negative_prompt": "ugly",
    "preview.seed": 5,
    "memory.device": "cpu",
    "memory.gradient_checkpointing": False,
    "memory.threads": 2,
    "output.dir": "elsewhere",
    "output.name": "other",
    "output.layouts": ["diffusers"],
    "output.dtype": "bf16",
    "output.metadata": "none",
    "resume": "latest",
}
RESOLVED = {"training.precision"}  # compared as what 'auto' came to mean
ONE_VALUE = {"training.optimizer.name", "config_version"}


def setting_paths(model=RunConfig, prefix=""):
    for name, field in model.model_fields.items():
        kind = field.annotation
        if isinstance(kind, type) and issubclass(kind, BaseModel):
            yield from setting_paths(kind, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}"


def config_with(path, value):
    values = value
    for name in reversed(path.split(".")):
        values = {name: values}
    return RunConfig.model_validate(values)


def deciding(config=None, precision="fp32", base="b", dataset="d", start=None):
    return deciding_settings(config or RunConfig(), precision, base, dataset, start)


def test_every_setting_is_in_one_of_the_tables():
    tables = [*DECIDES, *FREE, *RESOLVED, *ONE_VALUE]
    assert sorted(tables) == sorted(setting_paths())


@pytest.mark.parametrize("path", DECIDES)
def test_a_setting_that_decides_the_weights_is_compared_and_named(path):
    before, after = deciding(), deciding(config_with(path, DECIDES[path]))
    assert {name for name in before if before[name] != after[name]} == {path}
    assert before.keys() == after.keys()
    with pytest.raises(ConfigError) as caught:
        refuse_changes(Checkpoint(1, before, {}), after, RunConfig())
    assert f"{path} was {before[path]!r} and is {DECIDES[path]!r}" in caught.value.found
    assert "resume=none" in caught.value.remedy


@pytest.mark.parametrize("path", FREE)
def test_a_free_setting_may_change(path):
    changed = config_with(path, FREE[path])
    assert changed != RunConfig(), "the value is the default"
    assert deciding(changed) == deciding()
    refuse_changes(Checkpoint(1, deciding(), {}), deciding(changed), changed)


def test_settings_of_one_value_are_where_they_belong():
    assert deciding()["training.optimizer.name"] == "adamw"
    assert "config_version" not in deciding()


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"precision": "bf16"}, "training.precision was 'fp32' and is 'bf16'"),
        ({"base": "c"}, "base (content) was 'b' and is 'c'"),
        ({"dataset": "e"}, "dataset (content) was 'd' and is 'e'"),
        ({"start": "f"}, "adapter.start_from (content) was None and is 'f'"),
    ],
)
def test_what_a_run_resolved_is_compared_by_content(change, named):
    with pytest.raises(ConfigError) as caught:
        refuse_changes(Checkpoint(1, deciding(), {}), deciding(**change), RunConfig())
    assert caught.value.found.endswith(f": {named}")


def test_the_precision_that_auto_meant_may_be_written_out():
    explicit = config_with("training.precision", "bf16")
    assert deciding(explicit, "bf16") == deciding(precision="bf16")


def test_settings_survive_the_checkpoints_file():
    settings = deciding(config_with("adapter.alpha_pattern", {"a.b": 0.1}))
    assert json.loads(json.dumps(settings)) == settings


def test_every_change_is_named_and_a_setting_that_only_one_side_knows():
    before = deciding() | {"training.forgotten": 1}
    after = deciding(RunConfig(seed=3), base="c") | {"training.invented": 2}
    with pytest.raises(ConfigError) as caught:
        refuse_changes(Checkpoint(1, before, {}), after, RunConfig())
    assert caught.value.found.split(": ", 2)[2].split("; ") == [
        "base (content) was 'b' and is 'c'",
        "seed was 0 and is 3",
        "training.forgotten was 1 and is None",
        "training.invented was None and is 2",
    ]


@pytest.mark.parametrize(("made", "wanted", "fits"), [(5, 5, True), (5, 6, True), (6, 5, False)])
def test_a_run_cannot_be_shorter_than_its_checkpoint(made, wanted, fits):
    config = config_with("training.steps", wanted)
    checkpoint = Checkpoint(made, deciding(), {})
    if fits:
        refuse_changes(checkpoint, deciding(config), config)
        return
    with pytest.raises(ConfigError) as caught:
        refuse_changes(checkpoint, deciding(config), config)
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


def test_none_starts_anew_whatever_there_is(tmp_path, make_version):
    make_version(5)
    assert found(tmp_path, "none") is None


@pytest.mark.parametrize("resume", ["latest", "auto"])
def test_the_newest_checkpoint_of_the_newest_version_that_has_one(tmp_path, make_version, resume):
    make_version(900)
    newest = make_version(5, 10, 1_000_000)
    make_version()
    assert found(tmp_path, resume) == newest / "checkpoints" / "1000000"


def test_versions_are_ordered_by_number_and_unfinished_checkpoints_passed_over(
    tmp_path, make_version
):
    """A folder has a checkpoint's name only when it was whole: one that is not is damaged."""
    for _ in range(10):
        make_version(5)
    newest = make_version(7)
    assert newest.name == "v10"
    (newest / "checkpoints" / "9").mkdir()
    (newest / "checkpoints" / "000008").write_text("a file")
    (newest / "checkpoints" / ".writing-x").mkdir()
    assert found(tmp_path, "latest") == newest / "checkpoints" / "000007"


def test_auto_leaves_a_living_run_alone_and_latest_names_it(tmp_path, make_version):
    ended, living = make_version(5), make_version(10, live=True)
    assert found(tmp_path, "auto") == ended / "checkpoints" / "000005"
    assert found(tmp_path, "latest") == living / "checkpoints" / "000010"


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


def test_a_relative_path_knows_its_run(tmp_path, make_version, monkeypatch):
    version = make_version(5)
    monkeypatch.chdir(version / "checkpoints")
    checkpoint = found(tmp_path, "000005")
    assert checkpoint == version / "checkpoints" / "000005"
    assert checkpoint.parent.parent == version


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


def test_a_checkpoint_outside_of_a_run_is_refused(tmp_path, make_version):
    checkpoint = make_version(5) / "checkpoints" / "000005"
    checkpoint.rename(tmp_path / "000005")
    with pytest.raises(ConfigError, match="outside of its run's folder") as caught:
        found(tmp_path, tmp_path / "000005")
    assert "whole version folder" in caught.value.remedy
