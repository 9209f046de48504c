"""Several processes agree on where a run begins, and an adapter file loses no part there."""

import time

import pytest
import torch
from safetensors.torch import load_file, save_file

from tests.fixtures.peer_files import QWEN, one
from tests.fixtures.thread_processes import together
from trainer_core.config import RunConfig
from trainer_core.errors import AdapterFileError, ConfigError, InputError, RunError
from trainer_core.families.registry import get_family
from trainer_core.tensors.safetensors_writer import save_tensors
from trainer_core.training.checkpoints.checkpoint import save_checkpoint
from trainer_core.training.checkpoints.run_folder import create_version, open_version
from trainer_core.training.setup.starting_point import find_start, read_start, start_identity
from trainer_core.training.step.processes import SingleProcess


@pytest.fixture
def make_version(tmp_path):
    def make(*steps, root="out"):
        folder = create_version(tmp_path / root / "run", {"step": 100}, "")
        for step in steps:
            save_checkpoint(folder.checkpoints, step, {}, TENSORS, write_adapter)
        folder.release()
        return folder.path

    return make


def config(tmp_path, resume="auto", root="out"):
    output = {"dir": str(tmp_path / root), "name": "run"}
    return RunConfig.model_validate({"output": output, "resume": resume})


TENSORS = {"a": torch.ones(1)}


def write_adapter(path):
    save_tensors(path, TENSORS)


FAMILY = get_family("qwen_image")


def begun(configs, before=lambda index: None, after=lambda index, folder: None):
    """Let each process begin; what each found, or the error that it met."""

    def begin(process):
        try:
            before(process.index)
            start = find_start(configs[process.index], FAMILY, "fp32", process)
            after(process.index, start.folder)
            return start.folder, start.checkpoint and start.checkpoint.step
        except RunError as error:
            return error

    return together(len(configs), begin)


def test_a_slow_process_finds_what_the_first_has_found_and_then_locked(tmp_path, make_version):
    make_version(3)
    newest = make_version(5)
    held = []

    def late(index):
        time.sleep(0.05 * index)

    def lock(index, folder):
        if index == 0:
            held.append(open_version(folder.parent.parent))

    found = begun([config(tmp_path)] * 3, late, lock)
    assert found == [(newest / "checkpoints" / "000005", 5)] * 3
    held[0].release()


@pytest.mark.parametrize("others", [(), (4,), (5,)])
def test_processes_that_found_different_checkpoints_all_refuse(tmp_path, make_version, others):
    """The last case: the same step, of another version."""
    make_version(5)
    make_version(2, root="elsewhere")
    if others:
        make_version(*others, root="elsewhere")
    two = [config(tmp_path), config(tmp_path, root="elsewhere" if others else "nowhere")]
    for error in begun(two):
        assert isinstance(error, RunError)
        assert "found another checkpoint than the first" in error.found
        assert "the first step 5 of v0" in error.found
        assert "output.dir" in error.remedy


def from_file(path, family="qwen_image"):
    values = {"base": {"path": "embedded"}, "dataset": {"path": "x"}, "family": family}
    return RunConfig.model_validate({**values, "adapter": {"start_from": str(path)}})


def start_of(settings):
    return read_start(settings, get_family(settings.family))


@pytest.mark.parametrize("ending", ["diff", "diff_b", "set_weight", "w_norm"])
def test_what_is_no_factor_is_refused_by_name(ending, tmp_path):
    path = tmp_path / "a.safetensors"
    peer = one(f"transformer.{QWEN}", QWEN, "qwen_image", "comfyui")
    save_file({**peer.tensors, f"diffusion_model.img_in.{ending}": torch.ones(4, 4)}, path)
    with pytest.raises(AdapterFileError, match=rf"changes img_in\.{ending}, and 1 layer"):
        start_of(from_file(path))
    assert len(load_file(path)) == 4


def test_a_path_without_an_adapter_is_told(tmp_path):
    with pytest.raises(ConfigError, match="there is no file"):
        start_of(from_file(tmp_path / "none"))
    with pytest.raises(ConfigError, match="there is no file"):
        start_identity(from_file(tmp_path / "none"), None)
    for ask in (start_of, lambda given: start_identity(given, None)):
        with pytest.raises(AdapterFileError, match=r"folder without adapter_model\.safetensors"):
            ask(from_file(tmp_path))


def test_a_version_that_cannot_be_taken_up_is_refused_before_work(tmp_path, make_version):
    version = make_version(3)
    with open_version(version), pytest.raises(InputError, match="in use by process"):
        find_start(config(tmp_path, "latest"), FAMILY, "fp32", SingleProcess("cpu"))
    (version / "run.json").write_text("{", encoding="utf-8")
    for resume in ("auto", "latest", "3", str(version)):
        with pytest.raises(InputError, match=r"run\.json cannot be read"):
            find_start(config(tmp_path, resume), FAMILY, "fp32", SingleProcess("cpu"))
