"""At which noise levels a step trains: each for itself, or spread evenly over the step."""

import pytest
import torch

from trainer_core.data.batches import BatchPlan
from trainer_core.training.setup.run_batches import stratified
from trainer_core.types import Bucket

SAMPLES = 8


@pytest.fixture
def plan():
    return BatchPlan([Bucket(64, 64)] * 20, [0] * 20, 2, 4, 1, 0)


def places(plan, step, drawn=0.5):
    return [stratified(plan, 7, 1, step, position, drawn) for position in range(SAMPLES)]


def test_each_sample_of_a_step_has_its_own_share(plan):
    middles = [(index + 0.5) / SAMPLES for index in range(SAMPLES)]
    for step in range(1, 3):
        assert sorted(places(plan, step)) == pytest.approx(middles)
    assert places(plan, 1) != places(plan, 2)
    assert max(places(plan, 1, 1 - 2**-53)) <= 1.0


def test_a_step_with_fewer_samples_is_spread_over_all_of_them(plan):
    assert plan.samples(3) == 4
    found = [stratified(plan, 7, 1, 3, position, 0.5) for position in range(4)]
    assert sorted(found) == pytest.approx([0.125, 0.375, 0.625, 0.875])


def test_over_many_steps_each_position_is_everywhere_alike(plan):
    whole = [step for step in range(1, 3000) if plan.samples(step) == SAMPLES]
    generator = torch.Generator().manual_seed(0)
    drawn = torch.rand(len(whole), generator=generator).tolist()
    found = [stratified(plan, 7, 1, step, 3, at) for step, at in zip(whole, drawn, strict=True)]
    counts = torch.histc(torch.tensor(found), SAMPLES, 0, 1) / len(found)
    assert (counts - 1 / SAMPLES).abs().max() < 0.03
