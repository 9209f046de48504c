"""What users saved with the version of tests/fixtures/kept_files means today what it meant then."""

import json
import posixpath
import shutil
from pathlib import Path

import pytest
import torch
import yaml
from fixtures.kept_files.facts import arithmetic, digests, layers_of
from runs import CancelAfter, metrics, tensors

from trainer_core.adapter_files.read.read_adapter import read_adapter
from trainer_core.config.read_run_file import load_config
from trainer_core.families.registry import get_family
from trainer_core.training import train
from trainer_core.training.observer import CacheProgress

KEPT = Path(__file__).parent.parent / "fixtures" / "kept_files"
OTHER_DEFAULTS = {"training.sigma.stratified": True}
"""What a file that does not name a setting means today and did not mean then, on purpose."""


def kept(name):
    return json.loads((KEPT / name).read_text(encoding="utf-8"))


SETTINGS, READINGS = map(kept, ("settings.json", "adapters/readings.json"))
RUNS = sorted(path.name for path in (KEPT / "runs").iterdir())
ADAPTERS = [path.relative_to(KEPT).as_posix() for path in [*KEPT.glob("adapters/*/*/*")]]


def flat(values, prefix=""):
    found = {}
    for name, value in values.items():
        inner = isinstance(value, dict) and not name.endswith("_pattern")
        found |= flat(value, f"{prefix}{name}.") if inner else {prefix + name: value}
    return found


def placed(value):
    """A value that does not depend on where this folder lies."""
    if not isinstance(value, str) or not value.startswith((str(KEPT), "HERE")):
        return value
    return posixpath.normpath(Path(value.replace(str(KEPT), "HERE")).as_posix())


@pytest.fixture
def home(tmp_path):
    """The runs, their dataset and their cache in a folder that may be written."""
    for name in ("runs", "dataset", "cache"):
        shutil.copytree(KEPT / name, tmp_path / name)
    return tmp_path


@pytest.fixture(scope="module")
def same_arithmetic():
    """Whether this machine computes the bits of the one that made the files."""
    return arithmetic() == kept("arithmetic.json")


def test_nothing_is_left_out():
    files = [*KEPT.glob("run_files/*.yaml"), *KEPT.glob("runs/*/v0/run.yaml")]
    assert SETTINGS.keys() == {path.relative_to(KEPT).as_posix() for path in files}
    assert READINGS.keys() == set(ADAPTERS)
    assert {path.name for path in (KEPT / "ends").iterdir()} == set(RUNS)


@pytest.mark.parametrize("name", SETTINGS)
def test_a_run_file_says_what_it_said(name):
    now, then = (
        {path: placed(value) for path, value in flat(values).items()}
        for values in (load_config(KEPT / name).model_dump(mode="json"), SETTINGS[name])
    )
    named = flat(yaml.safe_load((KEPT / name).read_text(encoding="utf-8")))
    then |= {path: value for path, value in OTHER_DEFAULTS.items() if path not in named}
    assert {path: now.get(path) for path in then} == then


def assert_ended_as_then(result, name, same_arithmetic):
    expected, state = KEPT / "ends" / name, "training_state.safetensors"
    assert (result.status, result.step) == ("done", 6)
    (path,) = result.adapters
    found, wanted = tensors(path), tensors(expected / path.name)
    assert found.keys() == wanted.keys()
    if not same_arithmetic:
        # Other rounding; a step of another size or direction would be far off.
        for key, tensor in wanted.items():
            assert (found[key] - tensor).norm() <= 0.01 * tensor.norm(), key
        return
    assert {key for key in wanted if not torch.equal(found[key], wanted[key])} == set()
    state_now = digests(tensors(result.folder / "checkpoints" / "000006" / state))
    assert state_now == json.loads((expected / "training_state.json").read_text())
    for then, now in zip(metrics(expected), metrics(result.folder), strict=True):
        assert {field: now.get(field) for field in then} == then


@pytest.mark.parametrize("name", RUNS)
def test_a_checkpoint_is_resumed_to_the_same_end(home, name, same_arithmetic):
    config = load_config(home / "runs" / name / "v0" / "run.yaml", ["resume=latest"])
    observer = CancelAfter(99)
    result = train(config, observer)
    assert result.folder.samefile(home / "runs" / name / "v0")
    assert not [event for event in observer.events if isinstance(event, CacheProgress)]
    assert_ended_as_then(result, name, same_arithmetic)


@pytest.mark.parametrize("name", RUNS)
def test_a_run_file_trains_to_the_same_end(home, name, same_arithmetic):
    again = f"output.dir={home / 'again'}"
    result = train(load_config(home / "runs" / name / "v0" / "run.yaml", [again]))
    assert_ended_as_then(result, name, same_arithmetic)


def test_a_finished_cache_is_trained_without_its_images(home, same_arithmetic):
    shutil.rmtree(home / "dataset")
    (manifest,) = (home / "cache").glob("*.cache.json")
    overrides = ['dataset.path=""', "cache.dir=null", f"cache.manifest={manifest}"]
    overrides.append(f"output.dir={home / 'again'}")
    config = load_config(home / "runs" / "lora" / "v0" / "run.yaml", overrides)
    assert_ended_as_then(train(config), "lora", same_arithmetic)


@pytest.mark.parametrize("name", ADAPTERS)
def test_an_adapter_file_is_read_as_it_was(name):
    key_map = get_family(name.split("/")[1]).layers.key_map
    assert layers_of(read_adapter(KEPT / name, key_map)) == READINGS[name]
