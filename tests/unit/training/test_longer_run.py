"""A cosine that is replanned, against NumPy in float64."""

import json

import numpy
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from trainer_core.config import RunConfig
from trainer_core.training.checkpoints.checkpoint import Checkpoint
from trainer_core.training.checkpoints.longer_run import LEAST, SCHEDULE, replan_schedule
from trainer_core.training.step.learning_rate import make_schedule


def run(steps, name="cosine", **schedule):
    section = {"name": name, **schedule}
    values = {"steps": steps, "schedule": section, "optimizer": {"learning_rate": 1e-3}}
    return RunConfig.model_validate({"training": values})


def stopped(config, step, replanned=None):
    """What a checkpoint of a run says that was stopped after a step."""
    schedule = config.training.schedule.model_dump()
    settings = {f"training.schedule.{name}": value for name, value in schedule.items()}
    settings |= {"training.steps": config.training.steps, SCHEDULE: replanned}
    return Checkpoint(step, json.loads(json.dumps(settings)), {})


def factors(config, replanned=None):
    steps = config.training.steps
    schedule = make_schedule(config.training.schedule, steps, replanned)
    return numpy.array([schedule(step) for step in range(1, steps + 1)])


def cosine(top, low, count):
    """From `top` to `low` in `count` steps, both reached."""
    turn = numpy.linspace(0, numpy.pi, count, dtype=numpy.float64)
    return low + (top - low) * (1 + numpy.cos(turn)) / 2


def test_the_rest_of_a_longer_run_falls_from_where_it_stands():
    short, longer = (run(n, warmup_steps=5, min_ratio=0.02) for n in (40, 70))
    replanned = replan_schedule(longer, stopped(short, 20))
    now = factors(longer, replanned)
    here = factors(short)[19]
    numpy.testing.assert_allclose(now[:5], numpy.arange(1, 6) / 5, atol=0)
    numpy.testing.assert_allclose(now[20:], cosine(here, 0.02, 50), atol=1e-15)


@given(
    lengths=st.lists(st.integers(2, 60), min_size=1, max_size=4),
    warmup=st.integers(0, 8),
    low=st.sampled_from([0.0, 0.1, 0.5, 1.0]),
    seed=st.integers(0, 99),
)
@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_no_resume_jumps_above_the_rate_where_it_stands_or_a_quarter(lengths, warmup, low, seed):
    steps, replanned = 30 + warmup, None
    config = run(steps, warmup_steps=warmup, min_ratio=low)
    for more, share in zip(lengths, numpy.random.default_rng(seed).random(4), strict=False):
        step = max(1, round(share * steps))
        checkpoint = stopped(config, step, replanned)
        before = factors(config, replanned)
        steps += more
        config = run(steps, warmup_steps=warmup, min_ratio=low)
        replanned = replan_schedule(config, checkpoint)
        now = factors(config, replanned)
        # Stopped again in the middle, and gone on with: the very same numbers.
        again = replan_schedule(config, stopped(config, min(steps, step + 1), replanned))
        assert (factors(config, again)[step:] == now[step:]).all()
        if step > warmup:
            assert now[step:].max() <= max(before[step - 1], LEAST) + 1e-12
            assert now[-1] == pytest.approx(low, abs=1e-12) or more == 1
