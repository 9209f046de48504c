"""What the host does in a step besides the model's work, and how often it waits for the device."""

import pytest
import torch

from benchmarks.loop_work import (
    MICRO_BATCHES,
    HostWork,
    UnreadDevice,
    attach_adapter,
    cached_samples,
    full_size_base,
    make_trainer,
)
from trainer_core.families.diffusers_parts import computing_dtype
from trainer_core.training.checkpoints.train_state import TrainState

MOST_CALLS = 4320
"""3,875 with torch 2.13, nine of ten of them in torch's arithmetic on the meta device."""


class Differentiating(UnreadDevice):
    """Goes backward on the meta device."""

    def backward(self, loss):
        loss.backward()


@pytest.mark.exhaustive
def test_a_step_over_720_layers_walks_through_no_model(tmp_path):
    work = HostWork(tmp_path, pixels=256)
    assert work.layers == 720
    assert work.python_calls() < MOST_CALLS
    # A walk through it would be noticed:
    work.before_step = lambda: sum(1 for _ in work.transformer.named_modules())
    assert work.python_calls() > MOST_CALLS


@pytest.mark.parametrize("checkpointing", [False, True])
def test_a_step_waits_for_the_device_once(tmp_path, checkpointing):
    """A number on the meta device cannot be read, so that every other wait would be an error."""
    transformer = full_size_base(blocks=2)
    adapter = attach_adapter(transformer)
    if checkpointing:
        transformer.enable_gradient_checkpointing()
    weights, processes = adapter.parameters(), Differentiating()
    optimizer = torch.optim.AdamW(weights)
    state = TrainState(adapter, optimizer)
    trainer = make_trainer(cached_samples(tmp_path, 64), transformer, weights, state, processes)
    for step in range(1, 4):
        trainer.train_step(step)
        assert processes.reads == step
    assert MICRO_BATCHES > 1
    assert {state["step"].item() for state in optimizer.state.values()} == {3}


def test_the_format_that_a_model_computes_in_is_asked_again_when_its_weights_have_changed():
    transformer = full_size_base(blocks=1)
    assert computing_dtype(transformer) == transformer.dtype == torch.bfloat16
    transformer.to(torch.float32)
    assert computing_dtype(transformer) == transformer.dtype == torch.float32
