"""The memory of a run: its estimate, one plan of several processes, and the doctor's table."""

from dataclasses import replace

import pytest
import torch

from tests.fixtures.combinations import rarely
from tests.fixtures.machines import SmallMachine
from tests.fixtures.thread_processes import together
from trainer_core.bases.locate import locate_base
from trainer_core.commands.memory_report import memory_report
from trainer_core.config import RunConfig
from trainer_core.errors import RunError, TrainerError
from trainer_core.families.registry import get_family
from trainer_core.offload.empty_base import empty_base
from trainer_core.offload.machine import Machine
from trainer_core.offload.memory_plan import Budget
from trainer_core.training.memory.memory_estimate import check_memory
from trainer_core.training.setup.choose_plan import agreed_budget
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


def doctors_report(machine, problems, **memory):
    """What the doctor says of a small run on a machine, and its base."""
    family = get_family("qwen_image")
    values = {
        "adapter": {"rank": 2, "targets": [".*\\.attn\\.to_q"]},
        "memory": {"device": "cpu", **memory},
        "dataset": {"resolution": 64},
        "base": {"text_length": 32},
    }
    config = RunConfig.model_validate(values)
    base = empty_base(locate_base(config.base, family, False, needs_encoders=False), family)

    def attempt(name, work):
        try:
            return work()
        except TrainerError as error:
            problems.append(f"{name}: {error}")
            return None

    return memory_report(config, base, 0, attempt, machine(base))


@pytest.mark.parametrize(
    ("machine", "checkpointed"),
    [
        pytest.param(Machine(), None, id="cpu"),
        *rarely([(SmallMachine(4 * GIB), None), (SmallMachine(1 * GIB // 2), 0)]),
    ],
)
def test_the_doctor_shows_the_blocks_that_a_run_checkpoints(machine, checkpointed):
    report = doctors_report(lambda base: machine, [])
    assert {"base", "activations", "total"} <= report["memory_estimate"].keys()
    if checkpointed is None:
        assert "memory_plans" not in report, "a run plans nothing"
        return
    (row, *_) = report["memory_plans"]
    assert (row["base_format"], row["blocks_to_checkpoint"]) == ("dense", checkpointed)
    assert row["device_memory"] == report["memory_estimate"]["total"]


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
