from typing import get_args

import numpy
import pytest
import torch
from transformers.optimization import (
    get_cosine_with_hard_restarts_schedule_with_warmup,
    get_wsd_schedule,
)

from trainer_core.config import ScheduleSection
from trainer_core.training.step.learning_rate import make_schedule


def test_warmup_rises_linearly_and_reaches_one_at_its_last_step():
    schedule = make_schedule(ScheduleSection(warmup_steps=4), 10)
    assert [schedule(step) for step in range(1, 7)] == [0.25, 0.5, 0.75, 1.0, 1.0, 1.0]


NAMES = list(get_args(ScheduleSection.model_fields["name"].annotation))
STEPS = 40


def section(name, **settings):
    return ScheduleSection.model_validate({"name": name, **settings})


def factors(steps=STEPS, **settings):
    schedule = make_schedule(section(**settings), steps)
    return numpy.array([schedule(step) for step in range(1, steps + 1)])


def rates(make, steps=STEPS, rate=1.0):
    """What one of torch's schedulers gives each of so many steps."""
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=rate)
    schedule, found = make(optimizer), []
    for _ in range(steps):
        found.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        schedule.step()
    return numpy.array(found)


SCHEDULERS = torch.optim.lr_scheduler
REFERENCES = {
    "linear": lambda o: SCHEDULERS.LinearLR(o, 1.0, 1e-12, STEPS - 1),
    "polynomial": lambda o: SCHEDULERS.PolynomialLR(o, STEPS - 1, 2.0),
    "cosine": lambda o: SCHEDULERS.CosineAnnealingLR(o, STEPS - 1),
    "cosine_restarts": lambda o: get_cosine_with_hard_restarts_schedule_with_warmup(
        o, 0, STEPS - 1, num_cycles=3
    ),
    "warmup_stable_decay": lambda o: get_wsd_schedule(
        o, 0, 8, num_training_steps=STEPS, decay_type="1-sqrt"
    ),
}


@pytest.mark.parametrize("name", REFERENCES)
def test_a_schedule_is_that_of_torch_or_transformers(name):
    theirs = rates(REFERENCES[name])
    # Their cool-down begins a step earlier and ends behind the run.
    ours = factors(name=name)
    if name == "warmup_stable_decay":
        ours = factors(STEPS + 1, name=name, decay_share=8 / STEPS)[:STEPS]
    numpy.testing.assert_allclose(ours, theirs, atol=1e-9)


def test_one_cycle_is_torchs():
    theirs = rates(
        lambda o: SCHEDULERS.OneCycleLR(
            o, 1.0, STEPS, pct_start=0.3, div_factor=25, final_div_factor=1e12
        ),
        rate=1 / 25,
    )
    numpy.testing.assert_allclose(factors(name="one_cycle"), theirs, atol=1e-9)


def test_rex_is_the_papers_formula():
    left = 1 - numpy.arange(STEPS) / (STEPS - 1)
    numpy.testing.assert_allclose(factors(name="rex"), left / (0.5 + 0.5 * left), atol=1e-15)


@pytest.mark.parametrize("name", sorted(set(NAMES) - {"constant"}))
@pytest.mark.parametrize("rise", [{}, {"warmup_steps": 7}, {"warmup_share": 0.175}])
def test_all_that_fall_begin_at_one_behind_the_warm_up_and_end_at_min_ratio(name, rise):
    found = factors(name=name, min_ratio=0.1, **rise)
    begin = int(numpy.argmax(found))
    assert found[begin] == 1.0
    assert begin <= (12 if name == "one_cycle" else 7)
    assert found[-1] == pytest.approx(0.1)
    if rise and name != "one_cycle":
        numpy.testing.assert_allclose(found[:7], numpy.arange(1, 8) / 7)
