"""Runs and drawings that are killed while they write, and checkpoints that are damaged."""

import os

import pytest
from fixtures.combinations import some
from fixtures.leftovers import killed_while_writing, left_behind
from runs import CancelAfter, assert_same_files, metrics, record, run_config

from trainer_core.errors import CheckpointError
from trainer_core.training import train

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
SETTINGS = {"steps": 4, "checkpoint_every": 1, "keep_checkpoints": 3}


def config_of(folder, cache, **values):
    return run_config(folder, cache, training=SETTINGS, **values)


@pytest.fixture(scope="module")
def reference(tmp_path_factory, cache):
    return train(config_of(tmp_path_factory.mktemp("reference"), cache)).folder


@pytest.mark.exhaustive
def test_a_run_killed_while_it_saves_is_tidied_up_by_the_next_and_told(tmp_path, cache, reference):
    size = (reference / "checkpoints" / "000004" / "training_state.safetensors").stat().st_size
    killed_while_writing(lambda: train(config_of(tmp_path, cache)), size // 2)
    version = tmp_path / "run" / "v0"
    (left,) = (version / "checkpoints").iterdir()
    others = [left_behind(place / "x") for place in (version.parent, cache, cache / "text")]
    ears = CancelAfter()
    again = train(config_of(tmp_path, cache, resume="auto"), ears)
    for path in others:
        assert sum(path.name in warning for warning in ears.said()) == 1, path
        assert not path.exists()
    # It came to nothing, so that its whole folder went.
    assert not left.exists()
    assert any(f"Removed {version}, " in warning for warning in ears.said())
    assert [path.name for path in (tmp_path / "run").iterdir()] == ["v1"]
    assert metrics(again.folder) == metrics(reference)


@pytest.mark.parametrize("damage", some(["cut", "state"], "cut"))
def test_a_run_goes_on_from_the_checkpoint_before_a_damaged_one(tmp_path, cache, reference, damage):
    train(config_of(tmp_path, cache), CancelAfter(3))
    version = tmp_path / "run" / "v0"
    newest = version / "checkpoints" / "000003"
    if damage == "cut":
        file = newest / "training_state.safetensors"
        file.write_bytes(file.read_bytes()[:1000])
    else:
        (newest / "state.json").unlink()
    with pytest.raises(CheckpointError, match=r"resume=.*000002"):
        train(config_of(tmp_path, cache, resume=str(newest)))
    ears = CancelAfter()
    again = train(config_of(tmp_path, cache, resume="latest"), ears)
    assert (again.folder, again.step) == (version, 4)
    (told,) = [warning for warning in ears.said() if "cannot be read" in warning]
    assert str(newest) in told
    assert "going on from step 2" in told
    assert record(version)["damaged_checkpoints"] == [told]
    assert metrics(version) == metrics(reference)
    assert_same_files([version / "run.safetensors"], [reference / "run.safetensors"])
    # The damaged one was made again, whole.
    train(config_of(tmp_path, cache, resume=str(newest)))
