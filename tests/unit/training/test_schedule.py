import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trainer_core.config import ScheduleSection
from trainer_core.training.optimizer import make_schedule


def test_constant_without_warmup_is_always_one():
    schedule = make_schedule(ScheduleSection(), 10)
    assert [schedule(step) for step in range(1, 11)] == [1.0] * 10


def test_warmup_rises_linearly_and_reaches_one_at_its_last_step():
    schedule = make_schedule(ScheduleSection(warmup_steps=4), 10)
    assert [schedule(step) for step in range(1, 7)] == [0.25, 0.5, 0.75, 1.0, 1.0, 1.0]


def test_cosine_starts_at_one_and_ends_at_min_ratio():
    schedule = make_schedule(ScheduleSection(name="cosine", warmup_steps=3, min_ratio=0.1), 23)
    assert schedule(4) == 1.0
    assert schedule(23) == pytest.approx(0.1)
    assert schedule(13) == pytest.approx(0.1 + 0.9 * (1 + math.cos(math.pi * 9 / 19)) / 2)


@pytest.mark.parametrize("warmup", [0, 5])
def test_cosine_equals_torch_cosine_annealing(warmup):
    """torch's scheduler counts from the first step after the warm-up."""
    import torch

    steps = 40
    parameter = torch.nn.Parameter(torch.zeros(1))
    optimizer = torch.optim.SGD([parameter], lr=1.0)
    torch_schedule = torch.optim.lr_scheduler.CosineAnnealingLR(
        optimizer, T_max=steps - warmup - 1, eta_min=0.2
    )
    ours = make_schedule(ScheduleSection(name="cosine", warmup_steps=warmup, min_ratio=0.2), steps)
    for step in range(warmup + 1, steps + 1):
        assert ours(step) == pytest.approx(optimizer.param_groups[0]["lr"], abs=1e-12)
        optimizer.step()
        torch_schedule.step()


@given(
    name=st.sampled_from(["constant", "cosine"]),
    warmup=st.integers(0, 30),
    steps=st.integers(1, 60),
    low=st.floats(0, 1),
)
def test_factor_stays_between_zero_and_one(name, warmup, steps, low):
    schedule = make_schedule(ScheduleSection(name=name, warmup_steps=warmup, min_ratio=low), steps)
    assert all(0.0 <= schedule(step) <= 1.0 for step in range(1, steps + 1))
