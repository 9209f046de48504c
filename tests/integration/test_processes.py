"""Two processes train what one would: all runs in one launch, as each takes long to import."""

import re

import pytest
import torch
from everything import masked_images
from faults import BREAKS
from launches import ALONE, FORKED, launch_two
from runs import CancelAfter, merge, metrics, noisy_images, run_config, tensors

from tests.fixtures.tables import table
from trainer_core.config.read_run_file import dump_config
from trainer_core.training import SingleProcess, train
from trainer_core.training.observer import SilentObserver
from trainer_core.training.prepare.encode_dataset import prepare, save_manifest

pytestmark = pytest.mark.slow
LATER = pytest.mark.exhaustive
PROGRAM = """
import sys, time
from pathlib import Path
import torch
from faults import overflowing
from runs import CancelAfter
from trainer_core.config.read_run_file import load_config
from trainer_core.errors import NonFiniteError
from trainer_core.training import AccelerateProcesses, train
processes = AccelerateProcesses(torch.device("cpu"))
folder = Path(sys.argv[1])
for path in sorted(folder.glob("*.yaml")):
    observer = CancelAfter(3) if path.stem == "stopped" else None
    if path.stem == "finished cache":
        time.sleep(2 * processes.index)  # the second one comes late
    try:
        with overflowing():
            result = train(load_config(path), observer, processes)
        end = f"{result.status} {result.step}"
    except NonFiniteError as error:
        end = error.found
    (folder / f"{path.stem} {processes.index}.txt").write_text(end)
"""
USUAL = {"training": {"steps": 4, "batch_size": 2, "gradient_accumulation_steps": 2}}
BITS = table(__file__, "runs of the same bits")
"""Runs of which two processes train the bits of one."""
ALIKE = table(__file__, "runs of other sums")
"""Runs whose gradients two processes add in another order."""


def config_of(folder, cache, name, **more):
    """A run of a table in a folder, on images of its own where it needs such."""
    settings = merge(USUAL, {**BITS, **ALIKE}.get(name, {}))
    if name == "masks":
        settings = merge(settings, {"dataset": {"path": str(cache / "masked")}})
    if name == "controls":
        settings = merge(settings, {"dataset": {"path": str(cache / "pairs")}})
    return run_config(folder / name, cache, **merge(settings, more))


def launched(folder, configs, launcher=ALONE):
    """Train these runs by name in two processes; gives how each of them ended."""
    for name, config in configs.items():
        (folder / f"{name}.yaml").write_text(dump_config(config))
    done = launch_two(folder, PROGRAM, folder, launcher=launcher, seconds=900)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-4000:]
    return {path.stem: path.read_text() for path in folder.glob("*.txt")}


def assert_same(found, expected, exact):
    """What two processes left of a run, and what one did."""
    for path in expected.adapters:
        ours, theirs = tensors(found / path.name), tensors(path)
        assert ours.keys() == theirs.keys()
        if exact:
            assert [key for key in theirs if not torch.equal(ours[key], theirs[key])] == []
        for key, value in theirs.items():
            torch.testing.assert_close(ours[key], value, rtol=1e-4, atol=1e-6)
    for a, b in zip(metrics(found), metrics(expected.folder), strict=True):
        assert a["sigma_mean"] == pytest.approx(b["sigma_mean"], rel=1e-12)
        assert a["loss"] == pytest.approx(b["loss"], rel=1e-4)


def version(folder, name):
    (found,) = (folder / name / "run").iterdir()  # not one for each process
    return found


def test_two_gloo_processes_train_the_bits_of_one(tmp_path, cache):
    ends = launched(tmp_path, {"adamw": config_of(tmp_path, cache, "adamw")}, FORKED)
    assert ends == {"adamw 0": "done 4", "adamw 1": "done 4"}
    one = train(config_of(tmp_path / "one", cache, "adamw"))
    assert_same(version(tmp_path, "adamw"), one, exact=True)


@pytest.fixture(scope="module")
def together(tmp_path_factory, cache):
    """All runs: their folder, and how each ended in each process."""
    folder = tmp_path_factory.mktemp("together")
    masked_images(cache / "masked")
    for kind in ("training_images", "control_images"):
        noisy_images(cache / "pairs" / kind)
    configs = {name: config_of(folder, cache, name) for name in (*BITS, *ALIKE)}
    configs["stopped"] = config_of(folder, cache, "stopped", training={"steps": 6})
    configs["broken"] = run_config(folder / "broken", cache, **BREAKS)
    own = config_of(folder, cache, "resumed", training={"steps": 6})
    assert train(own, CancelAfter(3)).step == 3
    configs["resumed"] = own.model_copy(update={"resume": "latest"})
    finished = config_of(folder, cache, "finished cache", training={"steps": 6})
    with torch.inference_mode(False):
        data = prepare(finished, SilentObserver(), SingleProcess(torch.device("cpu")))
    listed = finished.cache.model_copy(update={"manifest": str(save_manifest(finished, data))})
    images = finished.dataset.model_copy(update={"path": ""})
    finished = finished.model_copy(update={"cache": listed, "dataset": images})
    assert train(finished, CancelAfter(3)).status == "cancelled"
    configs["finished cache"] = finished.model_copy(update={"resume": "auto"})
    return folder, launched(folder, configs)


@LATER
@pytest.mark.parametrize("name", [*BITS, *ALIKE])
def test_two_processes_train_what_one_does(tmp_path, cache, together, name):
    folder, ends = together
    assert [ends[f"{name} {index}"] for index in (0, 1)] == ["done 4"] * 2
    one = train(config_of(tmp_path, cache, name))
    assert_same(version(folder, name), one, exact=name in BITS)


@LATER
def test_a_run_goes_on_with_another_number_of_processes(tmp_path, cache, together):
    """Also on a finished cache, where nothing is encoded together before."""
    folder, ends = together
    for name in ("resumed", "finished cache"):
        assert [ends[f"{name} {index}"] for index in (0, 1)] == ["done 6"] * 2
    assert [ends[f"stopped {index}"] for index in (0, 1)] == ["cancelled 3"] * 2
    stopped = config_of(folder, cache, "stopped", training={"steps": 6}, resume="latest")
    assert train(stopped).step == 6
    whole = train(config_of(tmp_path, cache, "whole", training={"steps": 6}))
    for name in ("resumed", "stopped", "finished cache"):
        assert_same(version(folder, name), whole, exact=False)


@LATER
def test_two_processes_name_the_layer_that_one_of_them_found(together):
    found = [together[1][f"broken {index}"] for index in (0, 1)]
    for text in found:
        assert re.search(r"first the (output|gradient) of transformer_blocks\.\d", text)
        assert "without the adapter the loss is finite" in text
