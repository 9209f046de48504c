"""The memory of a run: its estimate, one plan of several processes, and the doctor's table."""

from dataclasses import replace

import pytest
import torch

from tests.fixtures.thread_processes import together
from trainer_core.errors import RunError
from trainer_core.offload.possible_plans import Budget
from trainer_core.training.memory.memory_estimate import check_memory
from trainer_core.training.setup.plan_memory import agreed_budget
from trainer_core.training.step.processes import SingleProcess

GIB = 1 << 30
CPU = torch.device("cpu")


def test_several_processes_plan_for_the_smallest_device():
    own = [
        Budget(24 * GIB, 60 * GIB, 30 * GIB, 20e9, 100e12),
        Budget(12 * GIB, 63 * GIB, 33 * GIB, 25e9, 90e12),
        Budget(16 * GIB, 66 * GIB, 27 * GIB, 22e9, 95e12),
    ]
    found = together(3, lambda process: agreed_budget(own[process.index], process))
    # They share the RAM of their computer.
    assert found == [Budget(12 * GIB, 20 * GIB, 9 * GIB, 20e9, 90e12)] * 3
    assert agreed_budget(own[0], SingleProcess(CPU)) == replace(own[0])


def test_what_cannot_fit_is_refused_and_what_may_not_fit_is_warned_of():
    gib = 1 << 30
    estimate = {"base": 20 * gib, "adapter": 5 * gib, "activations": 10 * gib, "total": 35 * gib}
    device = torch.device("cpu")
    assert check_memory(estimate, 35 * gib, device) is None
    assert "gradient checkpointing" in check_memory(estimate, 34 * gib, device)
    assert check_memory(estimate, 25 * gib, device) is not None
    with pytest.raises(RunError) as error:
        check_memory(estimate, 24 * gib, device)
    assert "35.00 GiB on cpu" in error.value.found
    assert "base 20.00 GiB, adapter 5.00 GiB, activations 10.00 GiB" in error.value.found
    assert "24.00 GiB are free" in error.value.found
    assert "smaller base" in error.value.remedy
