import json

import pytest
import torch
from fixtures.leftovers import left_behind
from safetensors.torch import save_file

from trainer_core.adapters import attach
from trainer_core.adapters.parameter_groups import ParameterGroup, parameter_groups
from trainer_core.config import AdapterConfig, OptimizerSection
from trainer_core.errors import InputError, NonFiniteError
from trainer_core.training.checkpoint import (
    checkpoint_folders,
    prune_checkpoints,
    read_checkpoint,
    restore_tensors,
    save_checkpoint,
    training_tensors,
)
from trainer_core.training.optimizer import make_optimizer


def make_state(seed=0, steps=2):
    generator = torch.Generator().manual_seed(seed)
    parameters = {
        name: torch.nn.Parameter(torch.randn(shape, generator=generator))
        for name, shape in {"a.lora_up": (3, 2), "a.lora_down": (2, 5)}.items()
    }
    optimizer = make_optimizer(OptimizerSection(), [ParameterGroup(tuple(parameters.values()))])
    for _ in range(steps):
        for parameter in parameters.values():
            parameter.grad = torch.randn(parameter.shape, generator=generator)
        optimizer.step()
    return parameters, optimizer


def write_adapter(path):
    save_file({"x": torch.ones(1)}, str(path))


def save(folder, step=10, **state):
    parameters, optimizer = make_state(**state)
    tensors = training_tensors(parameters, optimizer)
    return save_checkpoint(folder, step, {"seed": 1}, tensors, write_adapter), tensors


def test_round_trip_restores_weights_and_optimizer_bit_for_bit(tmp_path):
    path, tensors = save(tmp_path)
    assert sorted(p.name for p in path.iterdir()) == [
        "adapter.safetensors",
        "state.json",
        "training_state.safetensors",
    ]
    checkpoint = read_checkpoint(path)
    assert (checkpoint.step, checkpoint.settings) == (10, {"seed": 1})
    parameters, optimizer = make_state(seed=5)
    restore_tensors(checkpoint, parameters, optimizer)
    restored = training_tensors(parameters, optimizer)
    assert restored.keys() == tensors.keys()
    assert all(torch.equal(restored[name], tensors[name]) for name in tensors)


def test_first_values_that_another_decomposition_found_are_put_back(tmp_path):
    """The same weight has singular vectors of other signs and bits on another device."""

    def attached(base):
        config = AdapterConfig(kind="lora", rank=2, init="pissa")
        adapter = attach(torch.nn.Sequential(base), config)
        groups = parameter_groups(adapter, OptimizerSection())
        return adapter, make_optimizer(OptimizerSection(), groups)

    torch.manual_seed(0)
    adapter, optimizer = attached(torch.nn.Linear(6, 8))
    with torch.no_grad():
        adapter.parameters()[0].fill_(0.5)
    tensors = training_tensors(adapter.named_tensors(), optimizer)
    path = save_checkpoint(tmp_path, 1, {}, tensors, write_adapter)
    other, optimizer = attached(torch.nn.Linear(6, 8))
    assert not torch.equal(other.frozen_tensors()["0.first_up"], tensors["adapter.0.first_up"])
    restore_tensors(read_checkpoint(path), other.named_tensors(), optimizer)
    assert torch.equal(other.delta_weight("0"), adapter.delta_weight("0"))
    assert set(other.named_tensors()) == {name.removeprefix("adapter.") for name in tensors}


def test_weight_that_is_not_finite_is_never_written(tmp_path):
    parameters, optimizer = make_state()
    with torch.no_grad():
        parameters["a.lora_up"][0, 0] = torch.inf
    with pytest.raises(NonFiniteError, match=r"a\.lora_up"):
        save_checkpoint(tmp_path, 1, {}, training_tensors(parameters, optimizer), write_adapter)
    assert list(tmp_path.iterdir()) == []


def test_failure_while_writing_leaves_no_checkpoint_and_no_rest(tmp_path):
    def fail(path):
        path.write_bytes(b"half")
        raise RuntimeError("stopped in the middle")

    parameters, optimizer = make_state()
    with pytest.raises(RuntimeError, match="in the middle"):
        save_checkpoint(tmp_path, 1, {}, training_tensors(parameters, optimizer), fail)
    assert list(tmp_path.iterdir()) == []


def test_checkpoint_that_is_there_is_kept(tmp_path):
    path, _ = save(tmp_path)
    before = (path / "training_state.safetensors").read_bytes()
    save(tmp_path, seed=9)
    assert (path / "training_state.safetensors").read_bytes() == before


def test_pruning_keeps_the_newest_and_clears_what_a_crash_left(tmp_path):
    for step in (5, 10, 1000000):
        save(tmp_path, step=step)
    left_behind(tmp_path / "000015", folder=True)
    prune_checkpoints(tmp_path, 2)
    assert [p.name for p in checkpoint_folders(tmp_path)] == ["000010", "1000000"]
    assert sorted(p.name for p in tmp_path.iterdir()) == ["000010", "1000000"]


@pytest.mark.parametrize("damage", ["state", "tensors", "missing", "format"])
def test_damaged_checkpoint_is_named(tmp_path, damage):
    path, _ = save(tmp_path)
    if damage == "state":
        (path / "state.json").write_text("{")
    elif damage == "tensors":
        file = path / "training_state.safetensors"
        file.write_bytes(file.read_bytes()[:100])
    elif damage == "missing":
        (path / "training_state.safetensors").unlink()
    else:
        state = json.loads((path / "state.json").read_text())
        (path / "state.json").write_text(json.dumps({**state, "format": 99}))
    with pytest.raises(InputError, match="000010"):
        read_checkpoint(path)


def test_checkpoint_of_another_adapter_names_the_first_difference(tmp_path):
    path, _ = save(tmp_path)
    parameters, optimizer = make_state()
    parameters["b.lora_up"] = parameters.pop("a.lora_up")
    with pytest.raises(InputError, match=r"a\.lora_up"):
        restore_tensors(read_checkpoint(path), parameters, optimizer)
