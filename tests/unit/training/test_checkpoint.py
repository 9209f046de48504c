import pytest
import torch
from safetensors.torch import save_file

from trainer_core.adapters import attach
from trainer_core.adapters.parameter_groups import parameter_groups
from trainer_core.config import AdapterConfig, EmaSection, OptimizerSection
from trainer_core.errors import NonFiniteError
from trainer_core.training.checkpoints.checkpoint import read_checkpoint, save_checkpoint
from trainer_core.training.checkpoints.ema import FactorAverages
from trainer_core.training.checkpoints.train_state import TrainState
from trainer_core.training.optimizers import make_optimizer


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
    state = make_state(seed=5)
    state.restore(checkpoint, OptimizerSection())
    assert state.step == 10
    restored = state.tensors()
    assert restored.keys() == tensors.keys()
    assert all(torch.equal(restored[name], tensors[name]) for name in tensors)


def test_what_a_run_has_been_through_is_put_back(tmp_path):
    state, other = make_state(), make_state(seed=5)
    state.skipped, state.restores = 2, 1
    path = save_checkpoint(tmp_path, 10, {"seed": 1}, state.tensors(), write_adapter)
    other.restore(read_checkpoint(path), OptimizerSection())
    assert (other.skipped, other.restores) == (2, 1)


def test_weight_that_is_not_finite_is_never_written(tmp_path):
    state = make_state()
    with torch.no_grad():
        state.adapter.named_tensors()["a.lora_up"][0, 0] = torch.inf
    with pytest.raises(NonFiniteError, match=r"a\.lora_up"):
        save_checkpoint(tmp_path, 1, {}, state.tensors(), write_adapter)
    assert list(tmp_path.iterdir()) == []


def test_an_average_is_kept_exported_and_shown_while_the_last_factors_train_steps(tmp_path):
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
