"""A base that two processes hold in parts trains what it trains whole."""

import json
import shutil
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from launches import ALONE, launch
from PIL import Image
from runs import CancelAfter, metrics, tensors
from sharded_runs import HALVES, RUNS, SHARDED, config_of, make_images

from tests.fixtures.flux_base import make_flux_base
from tests.fixtures.wan_base import make_wan_base
from trainer_core.config.run import RunConfig
from trainer_core.training import train

# Each launch loads torch in two processes at once.
pytestmark = pytest.mark.exhaustive

PROGRAM = str(Path(__file__).with_name("sharded_runs.py"))


ALIKE = ("lora", "loha", "lokr", "oft", "pissa", "eva", "flux", "wan")
"""Kinds, initializations, families and divided batches."""


def launch_sharded(folder, cache, *names):
    make_images(folder / "images")  # before two processes do
    return launch([*ALONE, PROGRAM, str(folder), str(cache), *names], SHARDED, 900)


def said(folder, name):
    """What each process said of a run that it finished."""
    return [json.loads((folder / f"{name} {index}.json").read_text()) for index in range(2)]


def train_alone(name, folder, cache, observer=None, **changes):
    config = config_of(name, folder, cache)
    return train(RunConfig.model_validate({**config.model_dump(), **changes}), observer)


def assert_same_run(found, expected, weight=1e-6):
    """The same losses to 1e-6, and trained weights."""
    pairs = list(zip(metrics(found), metrics(expected), strict=True))
    assert [a["loss"] for a, _ in pairs] == pytest.approx([b["loss"] for _, b in pairs], rel=1e-6)
    weights, others = tensors(found / "run.safetensors"), tensors(expected / "run.safetensors")
    assert weights.keys() == others.keys()
    for key, value in others.items():
        torch.testing.assert_close(weights[key], value, rtol=1e-6, atol=weight)


def version(folder, name):
    (found,) = (folder / name / "run").iterdir()
    return found


@pytest.fixture(scope="module")
def together(tmp_path_factory, cache):
    """All runs in one launch, of which the last fails: their folder."""
    folder = tmp_path_factory.mktemp("sharded")
    stopped = train_alone("resumed", folder, cache, CancelAfter(2), resume="none")
    assert stopped.step == 2
    make_flux_base(cache / "flux")
    make_wan_base(cache / "wan")
    made = train_alone("lora", tmp_path_factory.mktemp("first"), cache)
    for when in ("training", "always"):
        shutil.copyfile(made.adapters[0], cache / f"beside {when}.safetensors")
    names = ("everything", "resumed", "cancelled", "cancelled in a preview", *ALIKE, "twins")
    names += ("slider", "beside", "broken by the second")
    assert_broken(launch_sharded(folder, cache, *names), folder, names[-1])
    return folder


def assert_broken(done, folder, name):
    assert done.returncode != 0
    assert "Found: a cable that came loose" in done.stderr, done.stderr[-4000:]
    assert not list(folder.glob(f"{name}*.json"))


@pytest.fixture(scope="module")
def plain(tmp_path_factory, cache):
    """The runs that are resumed, as one process makes them without a stop."""
    return train_alone("cancelled", tmp_path_factory.mktemp("plain"), cache).folder


@pytest.mark.slow
def test_two_processes_train_and_preview_what_one_does(together, tmp_path, cache):
    ends = said(together, "everything")
    assert [each["end"] for each in ends] == ["done 4"] * 2
    one = train_alone("everything", tmp_path, cache).folder
    two = version(together, "everything")
    assert_same_run(two, one)
    images = sorted(path.relative_to(one) for path in one.rglob("*.png"))
    assert len(images) == 3
    for path in images:
        pair = [np.asarray(Image.open(each / path), np.int16) for each in (one, two)]
        assert np.abs(pair[0] - pair[1]).max() <= 1
    assert sum(each["for others"] for each in ends) > 0
    kept = [sorted(path.name for path in (each / "checkpoints").iterdir()) for each in (one, two)]
    assert kept == [["000002", "000004"]] * 2


def test_each_holds_half_of_the_base_and_gathers_a_block_at_a_time(together):
    for process in said(together, "everything"):
        held, blocks, gathered = process["seen"]
        assert held == pytest.approx(0.5, abs=0.02)
        # One that runs and, in the backward pass, one that comes next.
        assert 1 <= gathered <= 2 < blocks


def test_two_go_on_with_the_run_of_one(together, plain):
    assert [each["end"] for each in said(together, "resumed")] == ["done 4"] * 2
    assert_same_run(version(together, "resumed"), plain)


def test_a_cancel_of_one_ends_all_and_one_goes_on_alone(together, plain, cache):
    assert [each["end"] for each in said(together, "cancelled")] == ["cancelled 2"] * 2
    alone = train_alone("cancelled", together, cache, resume="latest")
    assert_same_run(alone.folder, plain)


def test_a_cancel_in_the_middle_of_a_preview_ends_all(together):
    name = "cancelled in a preview"
    assert [each["end"] for each in said(together, name)] == ["cancelled 0"] * 2
    assert not list(version(together, name).rglob("*.png"))


@pytest.mark.slow
def test_an_error_in_the_first_ends_all_with_its_message(tmp_path, cache):
    """One in the second ends the launch of the other tests."""
    name = "broken by the first"
    assert_broken(launch_sharded(tmp_path, cache, name), tmp_path, name)


@pytest.mark.slow
@pytest.mark.parametrize("name", ALIKE)
def test_kinds_initializations_families_and_divided_batches_train_the_same(
    together, tmp_path, cache, name
):
    one = train_alone(name, tmp_path, cache)
    # AdamW's first steps make much of how the halves of a micro-batch are rounded.
    weight = 1e-4 if RUNS[name].get("training") == HALVES else 1e-6
    assert_same_run(version(together, name), one.folder, weight)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["twins", "slider"])
def test_the_base_answers_all_processes_where_it_is_asked_in_a_step(
    together, tmp_path, cache, name
):
    assert sum(each["for others"] for each in said(together, name)) == 4
    one = train_alone(name, tmp_path, cache)
    assert_same_run(version(together, name), one.folder, 1e-4)


@pytest.mark.slow
def test_adapters_of_the_base_are_there_in_each_process(together, tmp_path, cache):
    """One is merged before the base is divided, and one is left out of previews by all at once."""
    one = train_alone("beside", tmp_path, cache).folder
    two = version(together, "beside")
    assert_same_run(two, one)
    for path in sorted(path.relative_to(one) for path in one.rglob("*.png")):
        pair = [np.asarray(Image.open(each / path), np.int16) for each in (one, two)]
        assert np.abs(pair[0] - pair[1]).max() <= 1


@pytest.mark.slow
def test_accelerates_launcher_starts_the_command(tmp_path, cache):
    config = config_of("resumed", tmp_path, cache)
    run_file = tmp_path / "run.yaml"
    run_file.write_text(json.dumps(config.model_dump(mode="json")))
    launcher = shutil.which("accelerate", path=str(Path(sys.executable).parent))
    how = ["launch", "--use_fsdp", "--fsdp_version", "2", "--num_processes", "2"]
    command = ["-m", "trainer_core", "train", str(run_file), "resume=none"]
    done = launch([str(launcher), *how, *command])
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-4000:]
    one = train_alone("resumed", tmp_path / "one", cache, resume="none")
    assert_same_run(version(tmp_path, "resumed"), one.folder)
