"""Optimizers on CUDA: few launches, no wait, and states that go on bit for bit."""

import pytest
import torch

from tests.fixtures.pretend_cuda import runtime
from tests.gpu.memory import PRETENDED, launches
from tests.unit.training.test_adamw8bit import make, parameters, run_steps, same
from trainer_core.config.optimizer import WAITS
from trainer_core.training.optimizers import (
    allocate_state,
    load_optimizer_tensors,
    optimizer_tensors,
)
from trainer_core.training.optimizers.registry import OPTIMIZERS

pytestmark = pytest.mark.gpu
CUDA = torch.device("cuda", 0)
NAMES = pytest.mark.parametrize("name", ["adamw", "adamw8bit"])


def on_device(weights):
    return [torch.nn.Parameter(each.detach().to(CUDA)) for each in weights]


@NAMES
def test_a_step_is_that_of_a_cpu(name):
    host, device = parameters(), on_device(parameters())
    run_steps(make(host, name, learning_rate=0.01), host, 5, seed=1)
    run_steps(make(device, name, learning_rate=0.01), device, 5, seed=1)
    for start, one, other in zip(parameters(), host, device, strict=True):
        bound = 1e-5 if name == "adamw" else 5e-3
        assert (one - other.cpu()).norm() <= bound * (one - start).norm()


@NAMES
def test_a_state_goes_on_bit_for_bit_and_from_a_cpu_too(name):
    whole = on_device(parameters())
    optimizer = make(whole, name)
    allocate_state(optimizer)
    run_steps(optimizer, whole, 3, seed=1)
    stored = {key: each.cpu() for key, each in optimizer_tensors(optimizer).items()}
    copies = on_device(whole)
    other = make(copies, name)
    load_optimizer_tensors(other, stored)
    run_steps(optimizer, whole, 3, seed=2)
    run_steps(other, copies, 3, seed=2)
    assert all(same(whole, copies))
    # A run of a CPU, whose counters lie there, goes on here.
    host = parameters()
    before = make(host, name)
    run_steps(before, host, 1, seed=1)
    moved = on_device(host)
    after = make(moved, name)
    load_optimizer_tensors(after, optimizer_tensors(before))
    run_steps(after, moved, 1, seed=2)
    run_steps(before, host, 1, seed=2)
    for one, two in zip(host, moved, strict=True):
        assert torch.allclose(one, two.cpu(), atol=1e-4)


@NAMES
def test_a_step_of_many_factors_is_few_launches_without_a_wait(name):
    weights = on_device(parameters(shapes=((4096,),) * 1440))
    optimizer = make(weights, name)
    allocate_state(optimizer)
    for each in weights:
        each.grad = torch.ones_like(each)
    optimizer.step()
    torch.cuda.synchronize()
    torch.cuda.set_sync_debug_mode("error")
    try:
        count = launches(optimizer.step)
    finally:
        torch.cuda.set_sync_debug_mode("default")
    # One after the other they would be twelve for each factor.
    assert 0 < count < len(weights)


@pytest.mark.skipif(not PRETENDED, reason="only a pretended device counts")
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_what_an_optimizer_waits_for_is_what_its_user_is_told(name):
    weights = on_device(parameters(shapes=((64, 64),) * 6))
    optimizer = make(weights, name)
    with torch.compiler.set_stance("force_eager"):
        run_steps(optimizer, weights, 2, seed=1)
        before = runtime.counts()
        optimizer.step()
        found = runtime.counts() - before
    expected = WAITS.get(name, (0, ""))[0] * len(weights)
    assert 0 <= found.waits + found.downloads - expected <= 2, "two of the step itself"
    assert found.uploads == 0
