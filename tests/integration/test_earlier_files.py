"""What users saved with the code of commit 5ec7b99 means today what it meant then.

How the files came about: tests/fixtures/from_5ec7b99/README.md.
"""

import json
import posixpath
import shutil
from pathlib import Path

import pytest
import torch
from fixtures.from_5ec7b99.facts import arithmetic, digests, layers_of
from runs import CancelAfter, metrics, tensors

from trainer_core.adapter_files.convert.convert import convert
from trainer_core.adapter_files.read.adapter_file import read_adapter
from trainer_core.config.reading import load_config
from trainer_core.families.registry import get_family
from trainer_core.training import train
from trainer_core.training.observer import CacheProgress

EARLIER = Path(__file__).parent.parent / "fixtures" / "from_5ec7b99"

ROUNDED = {"pissa": 1e-6}
"""Runs whose layers are summed up in another order today, to how far their ends may be apart."""


FUSED = 1e-4
"""How far the ends of a new run may be apart: on a CPU AdamW rounds in another order today."""


def kept(name):
    return json.loads((EARLIER / name).read_text(encoding="utf-8"))


SETTINGS, READINGS, CONVERSIONS = map(
    kept, ("settings.json", "adapters/readings.json", "adapters/conversions.json")
)
RUNS = sorted(path.name for path in (EARLIER / "runs").iterdir())
ADAPTERS = [path.relative_to(EARLIER).as_posix() for path in EARLIER.glob("adapters/*/*/*")]
OFF = {"dataset.regularization.path": "", "dataset.preservation.share": 0.0}
"""Settings that came later and act by themselves: a file without them has to leave them off."""
FIRST_VALUES = {kind: ["adapter.init=lycoris"] for kind in ("loha", "lokr", "lokr_full")}
"""What these kinds' initialization are called since there are others (CHANGELOG.md)."""


def flat(values, prefix=""):
    found = {}
    for name, value in values.items():
        inner = isinstance(value, dict) and not name.endswith("_pattern")
        found |= flat(value, f"{prefix}{name}.") if inner else {prefix + name: value}
    return found


def told(value):
    """A value that does not depend on where this folder lies."""
    if not isinstance(value, str) or not value.startswith((str(EARLIER), "HERE")):
        return value
    return posixpath.normpath(Path(value.replace(str(EARLIER), "HERE")).as_posix())


@pytest.fixture
def home(tmp_path):
    """The runs, their dataset and their cache in a folder that may be written."""
    for name in ("runs", "dataset", "cache"):
        shutil.copytree(EARLIER / name, tmp_path / name)
    return tmp_path


@pytest.fixture(scope="module")
def same_arithmetic():
    """Whether this machine computes the bits of the one that made the files."""
    return arithmetic() == kept("arithmetic.json")


def test_nothing_is_left_out():
    files = [*EARLIER.glob("run_files/*.yaml"), *EARLIER.glob("runs/*/v0/run.yaml")]
    assert SETTINGS.keys() == {path.relative_to(EARLIER).as_posix() for path in files}
    assert READINGS.keys() == CONVERSIONS.keys() == set(ADAPTERS)
    assert {path.name for path in (EARLIER / "ends").iterdir()} == set(RUNS)


@pytest.mark.parametrize("name", SETTINGS)
def test_a_run_file_says_what_it_said(name):
    now, then = (
        {path: told(value) for path, value in flat(values).items()}
        for values in (load_config(EARLIER / name).model_dump(mode="json"), SETTINGS[name])
    )
    assert {path: now.get(path) for path in then} == then
    assert {path: now[path] for path in OFF} == OFF


REORDERED = {"dora"}
"""Runs with gradient accumulation, whose samples come in another order since decision 43."""


def assert_ended_as_then(result, name, same_arithmetic, way="whole", rounded=0.0):
    expected, state = EARLIER / "ends" / name, "training_state.safetensors"
    if name in REORDERED:
        expected = EARLIER / "reordered" / name / way
    assert (result.status, result.step) == ("done", 6)
    (path,) = result.adapters
    found, wanted = tensors(path), tensors(expected / path.name)
    assert found.keys() == wanted.keys()
    rounded = max(rounded, ROUNDED.get(name, 0.0))
    if not same_arithmetic or rounded:
        # Other rounding; a step of another size or direction would be far off.
        most = rounded if same_arithmetic else 0.01
        for key, tensor in wanted.items():
            assert (found[key] - tensor).norm() <= most * tensor.norm(), key
        return
    assert {key for key in wanted if not torch.equal(found[key], wanted[key])} == set()
    whole = json.loads((expected / "training_state.json").read_text())
    now = digests(tensors(result.folder / "checkpoints" / "000006" / state))
    # What a checkpoint keeps besides, which those had not.
    assert {name: each for name, each in now.items() if not name.startswith("ledger.")} == whole
    for then, now in zip(metrics(expected), metrics(result.folder), strict=True):
        assert {field: now.get(field) for field in then} == then


@pytest.mark.parametrize("name", RUNS)
def test_a_checkpoint_is_resumed_to_the_same_end(home, name, same_arithmetic):
    config = load_config(home / "runs" / name / "v0" / "run.yaml", ["resume=latest"])
    observer = CancelAfter(99)
    result = train(config, observer)
    assert result.folder.samefile(home / "runs" / name / "v0")
    assert not [event for event in observer.events if isinstance(event, CacheProgress)]
    assert_ended_as_then(result, name, same_arithmetic, "resumed")


@pytest.mark.parametrize("name", sorted(REORDERED))
def test_another_order_is_that_of_the_same_step_in_one_pass(name):
    """That code trained 4 x 1 in the order in which 2 x 2 is trained now."""
    folder = EARLIER / "reordered" / name
    (path,) = (folder / "undivided").glob("*.safetensors")
    wanted, found, before = (
        tensors(each / path.name)
        for each in (folder / "undivided", folder / "whole", EARLIER / "ends" / name)
    )
    apart = {key: (found[key] - wanted[key]).norm() / wanted[key].norm() for key in wanted}
    assert max(apart.values()) < 1e-4
    assert max((before[key] - wanted[key]).norm() / wanted[key].norm() for key in wanted) > 1e-2
    # What had been trained before the update stays, and then the order is the new one.
    resumed = metrics(folder / "resumed")
    assert resumed[:3] == metrics(EARLIER / "ends" / name)[:3]
    assert resumed[3:] != metrics(EARLIER / "ends" / name)[3:]


@pytest.mark.parametrize("name", RUNS)
def test_a_run_file_trains_to_the_same_end(home, name, same_arithmetic):
    overrides = [*FIRST_VALUES.get(name, ()), f"output.dir={home / 'again'}"]
    result = train(load_config(home / "runs" / name / "v0" / "run.yaml", overrides))
    assert_ended_as_then(result, name, same_arithmetic, rounded=FUSED)


def test_a_finished_cache_is_trained_without_its_images(home, same_arithmetic):
    shutil.rmtree(home / "dataset")
    (manifest,) = (home / "cache").glob("*.cache.json")
    overrides = ['dataset.path=""', "cache.dir=null", f"cache.manifest={manifest}"]
    overrides.append(f"output.dir={home / 'again'}")
    config = load_config(home / "runs" / "lora" / "v0" / "run.yaml", overrides)
    assert_ended_as_then(train(config), "lora", same_arithmetic, rounded=FUSED)


def family_of(name):
    return get_family(name.split("/")[1]).key_map


@pytest.mark.parametrize("name", ADAPTERS)
def test_an_adapter_file_is_read_as_it_was(name):
    assert layers_of(read_adapter(EARLIER / name, family_of(name))) == READINGS[name]


@pytest.mark.parametrize("name", ADAPTERS)
def test_an_adapter_file_is_converted_as_it_was(name, tmp_path):
    for form, wanted in CONVERSIONS[name].items():
        target = tmp_path / form
        options = {"layout": form.split(".")[0].split("_")[0], "fused": "fused" in form}
        convert(EARLIER / name, target, key_map=family_of(name), **options)
        weights = target / "adapter_model.safetensors" if target.is_dir() else target
        assert digests(tensors(weights)) == wanted["tensors"], form
        if "config" in wanted:
            config = json.loads((target / "adapter_config.json").read_text())
            assert {key: config.get(key) for key in wanted["config"]} == wanted["config"]
