"""A damaged checkpoint costs the steps since the one before it, and no more; and it is told."""

import json
import random
import shutil

import pytest
import torch
from safetensors.torch import load_file, save_file

from trainer_core.errors import CheckpointError, InputError
from trainer_core.training.checkpoints.checkpoint import (
    FORMAT,
    read_whole_checkpoint,
    require_newest,
    save_checkpoint,
)

STATE, TENSORS = "state.json", "training_state.safetensors"


def save(folder, step):
    generator = torch.Generator().manual_seed(step)
    tensors = {
        name: torch.randn(3, 5, generator=generator)
        for name in ("adapter.a", "optimizer.0.exp_avg", "optimizer.1.exp_avg")
    }
    tensors |= {f"optimizer.{index}.exp_avg_sq": torch.ones(3, 5) for index in (0, 1)}
    settings = {"seed": 1, "adapter.targets": ["a", "ü"], "training.optimizer.eps": 1e-08}
    return save_checkpoint(
        folder, step, settings, tensors, lambda path: save_file({"x": torch.ones(1)}, str(path))
    )


@pytest.fixture
def checkpoints(tmp_path):
    for step in (5, 10, 15):
        save(tmp_path, step)
    return tmp_path


def cut(path, share):
    content = path.read_bytes()
    path.write_bytes(content[: int(len(content) * share)])


def flip(path, seed):
    content = bytearray(path.read_bytes())
    bit = random.Random(seed).randrange(len(content) * 8)
    content[bit // 8] ^= 1 << bit % 8
    path.write_bytes(bytes(content))


def lack(path, name):
    tensors = load_file(str(path / TENSORS))
    del tensors[name]
    save_file(tensors, str(path / TENSORS))


def lose_hash(path):
    state = json.loads((path / STATE).read_text())
    del state["sha256"]
    (path / STATE).write_text(json.dumps(state))


def empty(path):
    shutil.rmtree(path)
    path.mkdir()


DAMAGES = {
    "tensors cut in half": lambda p: cut(p / TENSORS, 0.5),
    "last byte lost": lambda p: cut(p / TENSORS, 0.9999),
    "tensors gone": lambda p: (p / TENSORS).unlink(),
    "tensors a folder": lambda p: ((p / TENSORS).unlink(), (p / TENSORS).mkdir()),
    "state gone": lambda p: (p / STATE).unlink(),
    "state empty": lambda p: cut(p / STATE, 0.0),
    "state a list": lambda p: (p / STATE).write_text("[1]"),
    "state nested": lambda p: (p / STATE).write_text("[" * 100_000),
    "state without step": lambda p: (p / STATE).write_text(
        json.dumps({"format": FORMAT, "settings": {}})
    ),
    "adapter tensor lacking": lambda p: lack(p, "adapter.a"),
    "moment lacking": lambda p: lack(p, "optimizer.1.exp_avg"),
    "no hash": lose_hash,
    "everything gone": empty,
    **{f"bit {seed} of tensors": lambda p, seed=seed: flip(p / TENSORS, seed) for seed in range(3)},
    **{f"bit {seed} of state": lambda p, seed=seed: flip(p / STATE, seed) for seed in range(3)},
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_newest_checkpoint_falls_back_to_the_one_before(checkpoints, damage):
    newest = checkpoints / "000015"
    DAMAGES[damage](newest)
    folder, checkpoint = read_whole_checkpoint(newest, named=False)
    assert (folder.name, checkpoint.step, checkpoint.newest) == ("000010", 10, 15)
    (told,) = checkpoint.damaged
    assert str(newest) in told
    assert "going on from step 10" in told
    with pytest.raises(CheckpointError) as error:
        read_whole_checkpoint(newest, named=True)
    assert str(newest) in error.value.found
    assert f"resume={checkpoints / '000010'}" in error.value.remedy


def test_a_checkpoint_of_a_later_version_is_not_passed_over(checkpoints):
    path = checkpoints / "000015" / STATE
    path.write_text(json.dumps({**json.loads(path.read_text()), "format": FORMAT + 1}))
    with pytest.raises(InputError, match="version of Adapter Trainer that wrote it"):
        read_whole_checkpoint(checkpoints / "000015", named=False)


def test_a_run_that_another_process_took_further_is_not_taken_back(checkpoints):
    _, checkpoint = read_whole_checkpoint(checkpoints / "000015", named=False)
    require_newest(checkpoints, checkpoint)
    save(checkpoints, 20)
    with pytest.raises(InputError, match="to step 20 by another process"):
        require_newest(checkpoints, checkpoint)


def test_several_damaged_ones_are_passed_over_and_each_is_told_until_all_are(checkpoints):
    newest = checkpoints / "000015"
    cut(newest / TENSORS, 0.5)
    (checkpoints / "000010" / STATE).unlink()
    folder, checkpoint = read_whole_checkpoint(newest, named=False)
    assert folder.name == "000005"
    for name, told in zip(("000015", "000010"), checkpoint.damaged, strict=True):
        assert name in told
    cut(checkpoints / "000005" / TENSORS, 0.5)
    with pytest.raises(CheckpointError) as error:
        read_whole_checkpoint(newest, named=False)
    assert all(step in error.value.found for step in ("000005", "000010", "000015"))
    assert "resume=none" in error.value.remedy
