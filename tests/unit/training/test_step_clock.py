"""Where the time of a step goes: a part that sleeps is found, however slow the machine is."""

import time

import pytest
import torch

from trainer_core.training.step.step_clock import StepClock

CPU = torch.device("cpu")


def make_step(clock, slow):
    """A step of some parts, one of which takes 30 ms."""

    def rest(part):
        time.sleep(0.03 if part == slow else 0.0)

    load = clock.waiting(lambda step, micro: rest("data") or (step, micro))

    started = time.perf_counter()
    clock.start()
    assert [load(1, micro) for micro in range(2)] == [(1, 0), (1, 1)]
    rest("compute")
    clock.mark_computed()
    rest("reduce")
    clock.mark_numbers_read()
    rest("update")
    clock.mark_updated()
    return clock.take(), time.perf_counter() - started


@pytest.mark.parametrize("slow", ["data", "compute", "reduce", "update"])
def test_what_is_slow_is_found_and_nothing_counts_twice(slow):
    times, whole = make_step(StepClock(CPU), slow)
    assert list(times) == ["data", "compute", "reduce", "update"]
    assert times[slow] >= 0.03
    assert sum(times.values()) <= whole
    assert min(times.values()) >= 0.0


@pytest.mark.gpu
def test_a_gpu_is_timed_by_events_and_never_waited_for():
    device = torch.device("cuda")
    clock = StepClock(device)
    matrix = torch.ones(4096, 4096, device=device)

    def gradients():
        load(1, 0)
        for _ in range(40):
            matrix @ matrix

    load = clock.waiting(lambda step, micro: None)
    found = []
    for _ in range(3):
        torch.cuda.synchronize()
        torch.cuda.set_sync_debug_mode("error")
        try:
            clock.start()
            gradients()
            clock.mark_computed()
        finally:
            torch.cuda.set_sync_debug_mode("default")
        matrix.sum().item()
        clock.mark_numbers_read()
        clock.mark_updated()
        found.append(clock.take())
    assert found[0] is None
    assert found[2]["compute"] > found[2]["update"] >= 0.0
    assert found[2]["compute"] > 0.001
