"""What a sweep keeps: its best adapter, other trials' results, and a record from anybody."""

import json
import shutil

import pytest

from trainer_core.errors import ConfigError, InputError
from trainer_core.families.run_files import config_of
from trainer_core.training.checkpoints.run_folder import create_version
from trainer_core.training.sweep.sweep import run_sweep, sweep_folder
from trainer_core.training.sweep.trials import file_trials, read_sweep


@pytest.fixture
def swept(tmp_path):
    """Runs a sweep of some ranks; the loss of a trial is its rank."""

    def run(ranks, seed=0):
        (tmp_path / "run.yaml").write_text(
            f"base: {{path: embedded}}\noutput: {{name: cat, dir: {tmp_path}}}\nseed: {seed}\n"
            "adapter: {kind: lora}\ndataset: {validation: {share: 0.5}}\n"
        )
        file = tmp_path / "sweep.yaml"
        file.write_text(f"run: run.yaml\ngrid: {{rank: {ranks}}}")
        _, trials = file_trials(read_sweep(file), file)

        def begin(trial, watch):
            version = create_version(tmp_path / trial.name, {"steps": 5}, "")
            watch._started(version.path)
            checkpoint = version.path / "checkpoints/000003"
            checkpoint.mkdir(parents=True)
            (checkpoint / "adapter.safetensors").write_text(f"{trial.name} {seed}")
            best = {"step": 3, "loss": trial.config.adapter.rank}
            version.update_record(status="done", step=5, best=best)
            version.release()
            return "done"

        return run_sweep(trials, tmp_path / "cat_sweep", begin, content="")

    return run


def test_the_best_adapter_stays_when_its_checkpoints_are_cleaned_up(swept, tmp_path):
    first = swept([2, 3, 4])
    assert (first.best, first.adapter.read_text()) == ("cat-rank_2", "cat-rank_2 0")
    shutil.rmtree(tmp_path / "cat-rank_2/v0/checkpoints")
    again = swept([2, 3, 4])
    assert (again.best, again.adapter.read_text()) == ("cat-rank_2", "cat-rank_2 0")
    # Without the copy the next one that has a checkpoint is the best.
    first.adapter.unlink()
    again = swept([2, 3, 4])
    assert (again.best, again.adapter.read_text()) == ("cat-rank_3", "cat-rank_3 0")
    shutil.rmtree(tmp_path / "cat-rank_3/v0/checkpoints")
    shutil.rmtree(tmp_path / "cat-rank_4/v0/checkpoints")
    again.adapter.unlink()
    assert swept([2, 3, 4]).adapter is None


def test_results_of_trials_with_other_settings_are_kept(swept, tmp_path):
    folder = tmp_path / "cat_sweep"
    swept([2, 3])
    swept([2, 3, 4])
    assert not (folder / "earlier_0").exists()
    before = json.loads((folder / "sweep.json").read_text())
    found = swept([3, 4])
    assert (found.best, found.adapter.read_text()) == ("cat-rank_3", "cat-rank_3 0")
    assert (folder / "earlier_0/cat.safetensors").read_text() == "cat-rank_2 0"
    assert json.loads((folder / "earlier_0/sweep.json").read_text()) == before
    swept([3, 4])
    assert not (folder / "earlier_1").exists()
    assert swept([3, 4], seed=1).adapter.read_text() == "cat-rank_3 1"
    assert (folder / "earlier_1/cat.safetensors").read_text() == "cat-rank_3 0"


def test_two_sweep_files_of_a_run_have_two_folders():
    config = config_of({"base": {"path": "embedded"}, "output": {"name": "cat"}})
    assert sweep_folder(config, "cat", "rates") != sweep_folder(config, "cat", "ranks")
    with pytest.raises(ConfigError, match="the sweep's folder would be"):
        sweep_folder(config, "cat", "ranks ")


@pytest.mark.parametrize(
    ("key", "value"),
    [
        *(("name", 3), ("settings", []), ("identity", None), ("status", "good"), ("status", [])),
        *(("loss", "low"), ("loss", float("nan")), ("loss", True), ("best_step", "3")),
        *(("step", None), ("step", -1), ("steps", 0.5), ("seconds", "long"), ("reason", {})),
        *(("run", 7), ("run", "../v0"), ("run", "/etc"), ("run", "cat-rank_3/v0")),
        *(("run", "cat-rank_2/v0/.."), ("run", "cat-rank_2/x")),
    ],
)
def test_a_record_that_is_none_is_refused_and_stays(swept, tmp_path, key, value):
    file = tmp_path / "cat_sweep/sweep.json"
    file.parent.mkdir()
    row = {"name": "cat-rank_2", "settings": {}, "identity": "", "run": "cat-rank_2/v0"}
    file.write_text(json.dumps({"trials": [row | {key: value}]}))
    before = file.read_text()
    with pytest.raises(InputError, match="cannot be read") as error:
        swept([2])
    assert error.value.expected
    assert error.value.remedy
    assert file.read_text() == before
