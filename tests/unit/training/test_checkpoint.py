"""Checkpoints are read as they were written, fall back when damaged, and give way to newer ones."""

import json
import random
import shutil

import pytest
import torch
from safetensors.torch import load_file, save_file

from tests.fixtures.tables import table
from trainer_core.adapters import attach
from trainer_core.adapters.parameter_groups import parameter_groups
from trainer_core.config import AdapterConfig, EmaSection, OptimizerSection
from trainer_core.errors import CheckpointError, InputError, NonFiniteError
from trainer_core.training.checkpoints.checkpoint import (
    FORMAT,
    read_checkpoint,
    read_whole_checkpoint,
    require_newest,
    save_checkpoint,
    surplus_checkpoints,
)
from trainer_core.training.checkpoints.checkpoint_clock import CheckpointClock
from trainer_core.training.checkpoints.ema import FactorAverages
from trainer_core.training.checkpoints.train_state import TrainState
from trainer_core.training.observer import RunRequests
from trainer_core.training.optimizers import make_optimizer

STATE, TENSORS = "state.json", "training_state.safetensors"
SETTINGS = {"seed": 1, "adapter.targets": ["a", "ü"], "training.optimizer.eps": 1e-08}


def make_state(seed=0, steps=2, layer="a"):
    generator = torch.Generator().manual_seed(seed)
    base = torch.nn.ModuleDict({layer: torch.nn.Linear(5, 3)})
    state = train_state(attach(base, AdapterConfig(kind="lora", rank=2)))
    for _ in range(steps):
        for parameter in state.adapter.parameters():
            parameter.grad = torch.randn(parameter.shape, generator=generator)
        state.optimizer.step()
    return state


def train_state(adapter):
    settings = OptimizerSection()
    return TrainState(adapter, make_optimizer(settings, parameter_groups(adapter, settings)))


def write_adapter(path):
    save_file({"x": torch.ones(1)}, str(path))


def save(folder, step=10, **state):
    tensors = make_state(**state).tensors()
    return save_checkpoint(folder, step, SETTINGS, tensors, write_adapter), tensors


def test_round_trip_restores_weights_and_optimizer_bit_for_bit(tmp_path):
    path, tensors = save(tmp_path)
    assert sorted(p.name for p in path.iterdir()) == [
        "adapter.safetensors",
        "state.json",
        "training_state.safetensors",
    ]
    checkpoint = read_checkpoint(path)
    assert (checkpoint.step, checkpoint.settings) == (10, SETTINGS)
    state = make_state(seed=5)
    state.restore(checkpoint, OptimizerSection())
    assert state.step == 10
    restored = state.tensors()
    assert restored.keys() == tensors.keys()
    assert all(torch.equal(restored[name], tensors[name]) for name in tensors)


def test_what_a_run_has_been_through_is_put_back(tmp_path):
    state, other = make_state(), make_state(seed=5)
    state.skipped_in_a_row, state.restores = 2, 1
    path = save_checkpoint(tmp_path, 10, {"seed": 1}, state.tensors(), write_adapter)
    other.restore(read_checkpoint(path), OptimizerSection())
    assert (other.skipped_in_a_row, other.restores) == (2, 1)


def test_weight_that_is_not_finite_is_never_written(tmp_path):
    state = make_state()
    with torch.no_grad():
        state.adapter.named_tensors()["a.lora_up"][0, 0] = torch.inf
    with pytest.raises(NonFiniteError, match=r"a\.lora_up"):
        save_checkpoint(tmp_path, 1, {}, state.tensors(), write_adapter)
    assert list(tmp_path.iterdir()) == []


def test_an_average_is_kept_exported_and_shown_while_the_last_factors_train_on(tmp_path):
    def averaged(value):
        state = make_state()
        factors = dict(state.adapter.named_parameters())
        state.average = FactorAverages(EmaSection(decay=0.5), factors)
        for each in state.average.held():
            each.fill_(value)
        return state

    state = averaged(0.25)
    last = {name: each.clone() for name, each in state.adapter.named_tensors().items()}
    exported = state.exported().layers["a"].tensors
    assert all(torch.all(each == 0.25) for each in exported.values())
    unaveraged = state.exported("last").layers["a"].tensors
    assert all(torch.equal(last[f"a.{name}"], each) for name, each in unaveraged.items())
    assert all(torch.equal(last[n], each) for n, each in state.adapter.named_tensors().items())
    path = save_checkpoint(tmp_path, 3, {}, state.tensors(), write_adapter)
    other = averaged(0.0)
    other.restore(read_checkpoint(path), OptimizerSection())
    assert all(torch.all(each == 0.25) for each in other.average.held())
    # A checkpoint with an average is one without it to a run that keeps none.
    make_state(seed=3).restore(read_checkpoint(path), OptimizerSection())


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
    "adapter tensor lacking": lambda p: lack(p, "adapter.a.lora_up"),
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
    folder, checkpoint = read_whole_checkpoint(newest, user_named=False)
    assert (folder.name, checkpoint.step, checkpoint.newest) == ("000010", 10, 15)
    (told,) = checkpoint.damaged
    assert str(newest) in told
    assert "going on from step 10" in told
    with pytest.raises(CheckpointError) as error:
        read_whole_checkpoint(newest, user_named=True)
    assert str(newest) in error.value.found
    assert f"resume={checkpoints / '000010'}" in error.value.remedy


def test_a_checkpoint_of_a_later_version_is_not_passed_over(checkpoints):
    path = checkpoints / "000015" / STATE
    path.write_text(json.dumps({**json.loads(path.read_text()), "format": FORMAT + 1}))
    with pytest.raises(InputError, match="version of Adapter Trainer that wrote it"):
        read_whole_checkpoint(checkpoints / "000015", user_named=False)


def test_a_run_that_another_process_took_further_is_not_taken_back(checkpoints):
    _, checkpoint = read_whole_checkpoint(checkpoints / "000015", user_named=False)
    require_newest(checkpoints, checkpoint)
    save(checkpoints, 20)
    with pytest.raises(InputError, match="to step 20 by another process"):
        require_newest(checkpoints, checkpoint)


def test_several_damaged_ones_are_passed_over_and_each_is_told_until_all_are(checkpoints):
    newest = checkpoints / "000015"
    cut(newest / TENSORS, 0.5)
    (checkpoints / "000010" / STATE).unlink()
    folder, checkpoint = read_whole_checkpoint(newest, user_named=False)
    assert folder.name == "000005"
    for name, told in zip(("000015", "000010"), checkpoint.damaged, strict=True):
        assert name in told
    cut(checkpoints / "000005" / TENSORS, 0.5)
    with pytest.raises(CheckpointError) as error:
        read_whole_checkpoint(newest, user_named=False)
    assert all(step in error.value.found for step in ("000005", "000010", "000015"))
    assert "resume=none" in error.value.remedy


@pytest.mark.parametrize(
    ("steps", "keep", "every", "spared", "expected"), table(__file__, "checkpoints that go")
)
def test_the_newest_the_multiples_and_the_spared_stay(steps, keep, every, spared, expected):
    assert surplus_checkpoints(steps, keep, every, spared) == expected


def test_the_clock_asks_when_the_last_checkpoint_is_old_enough():
    now = [100.0]
    clock = CheckpointClock(2.0, lambda: now[0])
    nothing, save = RunRequests(), RunRequests(save=True)
    asked = []
    for seconds in (0, 60, 59.9, 0.1, 30):
        now[0] += seconds
        asked.append(clock.asking(nothing))
    assert asked == [nothing, nothing, nothing, save, save]
    clock.saved()
    now[0] += 119.9
    assert clock.asking(nothing) == nothing
    now[0] += 0.1
    assert clock.asking(RunRequests(preview=True)) == RunRequests(save=True, preview=True)
