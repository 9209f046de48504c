"""A plan that is chosen for a GPU with little room: it trains, and takes no more than it said."""

from __future__ import annotations

import pytest
from runs import CancelAfter, run_config

from tests.gpu.memory import given_back
from trainer_core.offload.machine import Machine
from trainer_core.training import train
from trainer_core.training.observer import MemoryPlanned

pytestmark = pytest.mark.gpu


class Tight(Machine):
    """Says that so much is free."""

    def __init__(self, free):
        self._free = free

    def free_memory(self, device):
        return self._free


def test_a_run_that_has_to_swap_learns_as_a_resident_one(tmp_path, cache):
    def run(name, free):
        memory = {"device": "cuda", "gradient_checkpointing": True, "base_format": "dense"}
        training = {"steps": 4, "precision": "bf16"}
        observer = CancelAfter(99)
        config = run_config(tmp_path / name, cache, memory=memory, training=training)
        losses = train(config, observer, machine=Tight(free)).losses
        return losses, [each for each in observer.events if isinstance(each, MemoryPlanned)]

    reserve = 1 << 30
    resident, (plan,) = run("resident", reserve + (60 << 20))
    assert plan.rows[0].blocks_to_swap == 0
    with given_back():
        swapped, (plan,) = run("swapped", reserve + plan.rows[0].device_bytes - 1)
    assert plan.rows[0].blocks_to_swap > 0
    assert plan.rows[0].seconds > 0
    assert swapped == pytest.approx(resident, rel=2e-2)
