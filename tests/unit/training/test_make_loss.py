"""The loss of a step with its weights, noise that covers a channel, and several noises an image."""

import pytest
import torch

from tests.fixtures.small_steps import SEED, SHAPES, Model, batch_of, maker, preserved_of, random
from tests.fixtures.small_trainer import small_plan, small_trainer
from trainer_core.config import RunConfig
from trainer_core.counters import counter_seed
from trainer_core.data.batch_plan import BatchPlan
from trainer_core.diffusion.losses import FlowLoss
from trainer_core.diffusion.weighting import LearnedWeight, make_sigma_weight
from trainer_core.training.step.make_loss import with_noises
from trainer_core.training.step.split_batches import SplitBatches
from trainer_core.training.step.step_plan import StepPlan
from trainer_core.types import Bucket


def noise_of(step, position, shape, what="noise"):
    generator = torch.Generator().manual_seed(counter_seed(SEED, what, step, position))
    return torch.randn(shape, generator=generator)


@pytest.mark.parametrize("masked", [False, True])
def test_a_step_weighs_each_sample_and_tells_what_it_was_off_by_without(masked):
    shape = SHAPES["plain"]
    masks = random(3, 1, 6, 8, seed=9).square() if masked else None
    batch = batch_of(shape, weights=(1.0, 0.5, 2.0), masks=masks)
    model = Model(shape)
    weigh, loss = make_sigma_weight("cosmap", 5.0), FlowLoss("huber", 0.3)
    step = maker(model, batch, preserved_of(shape), sigma_weight=weigh, loss_function=loss)
    made = step(1, 0)
    ((noisy, sigma),) = model.seen
    assert len(noisy) == 4, "points that the base is held to share the pass"
    noise = torch.stack([noise_of(1, position, shape) for position in batch.positions])
    target = torch.cat([noise - batch.latents, random(1, *shape, seed=51)])
    whole = None if masks is None else torch.cat([masks, torch.ones(1, 1, 6, 8)])
    losses, plain = loss(noisy * model.factors.detach(), target, sigma, whole)
    factors = torch.tensor([1.0, 0.5, 2.0, 1.0]) * torch.tensor([weigh(s) for s in made.sigmas])
    torch.testing.assert_close(made.loss.detach(), (losses * factors).sum())
    assert torch.equal(made.errors, plain)
    assert made.positions == (0, 1, 2, -1)


def test_what_is_held_out_is_measured_by_the_loss_without_the_weights_of_noise_levels():
    shape = SHAPES["plain"]
    model, loss = Model(shape), FlowLoss("mae", guidance=1.0)
    weigh = make_sigma_weight("sigma_sqrt", 5.0)
    weighted = maker(model, batch_of(shape), loss_function=loss, sigma_weight=weigh)
    (points,) = weighted.prepare(1, 0)
    unweighted = maker(model, batch_of(shape), loss_function=loss)
    assert torch.equal(weighted.loss(points), unweighted(1, 0).loss)
    assert weighted.measure(points)[0] > 1.5 * weighted.loss(points)


@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES)
def test_noise_of_a_whole_channel_is_in_the_input_and_in_the_target(shape):
    batch, plain, offset = batch_of(shape), Model(shape), Model(shape)
    (without,) = maker(plain, batch).prepare(1, 0)
    (points,) = maker(offset, batch, noise_offset=0.25).prepare(1, 0)
    assert points.sigmas == without.sigmas
    added = points.target - without.target
    sigma = torch.tensor(points.sigmas).reshape(-1, *[1] * len(shape))
    torch.testing.assert_close(points.noisy - without.noisy, sigma * added, rtol=0, atol=1e-5)
    for row, position in zip(added, batch.positions, strict=True):
        level = noise_of(1, position, (shape[0], *[1] * (len(shape) - 1)), "noise offset")
        torch.testing.assert_close(row, (0.25 * level).expand(shape), rtol=0, atol=1e-6)
    assert added.flatten(2)[..., 0].unique().numel() == 3 * shape[0], "of each sample and channel"


BUCKETS = [Bucket(64, 64)] * 5


def plan_of(batch_size=2, count=2):
    return BatchPlan(BUCKETS, [0] * 5, batch_size, count, 1, SEED)


@pytest.mark.parametrize("dealt", [(0, 1), (0, 2), (1, 2)])
def test_each_pass_is_made_once_for_each_noise_in_order(dealt):
    plan = plan_of()
    assert StepPlan(plan, dealt).micro_batches(1) == plan.dealt(1, dealt)
    expected = [each * 3 + turn for each in plan.dealt(1, dealt) for turn in range(3)]
    thrice = StepPlan(plan, dealt, 3)
    assert thrice.micro_batches(1) == expected
    following, place, seen = thrice.following(2), (1, expected[0]), []
    while place is not None:
        seen.append(place)
        place = following(*place)
    assert seen == [(step, m) for step in (1, 2) for m in thrice.micro_batches(step)]


def test_a_batch_is_read_once_and_given_with_positions_of_its_own():
    reads = []

    def load(step, micro):
        reads.append((step, micro))
        return None if micro == 1 else batch_of(SHAPES["plain"], (4, 5), idle=step == 2)

    loaded = with_noises(load, 3)
    given = [loaded(1, micro) for micro in range(6)]
    assert reads == [(1, 0), (1, 1)]
    assert given[3:] == [None] * 3
    assert [each.positions for each in given[:3]] == [(12, 15), (13, 16), (14, 17)]
    assert given[0].latents is given[2].latents
    assert given[0].conditionings is given[2].conditionings
    assert loaded(2, 0).idle
    assert with_noises(load, 1) is load


def trained(noises, shape=(4, 6, 8)):
    """One step of four images over two micro-batches: the model, the step, its samples' errors."""
    training = {"steps": 1, "noises_per_latent": noises, "max_grad_norm": 0.0}
    training |= {
        "batch_size": 2,
        "gradient_accumulation_steps": 2,
        "optimizer": {"learning_rate": 1},
    }
    config = RunConfig.model_validate({"training": training})
    model = Model(shape)

    def load(step, micro):
        return batch_of(shape, (2 * micro, 2 * micro + 1))

    optimizer = torch.optim.SGD([model.factors], lr=1.0)
    compute = SplitBatches(maker(model, with_noises(load, noises)))
    plan = small_plan(config.training, times=noises)
    trainer = small_trainer(config, compute, optimizer, plan)
    trainer.schedule = lambda step: 1.0
    result, errors, _ = trainer.train_step(1)
    return model, result, errors


def test_a_step_of_several_noises_is_the_mean_over_all_of_them():
    model, told, seen = trained(3)
    shape = (4, 6, 8)
    start = Model(shape).factors.detach()
    factors, losses = start.clone().requires_grad_(), []
    sigmas = []
    for position in range(12):
        image = random(*shape, seed=position // 3)
        generator = torch.Generator().manual_seed(counter_seed(SEED, "sigma", 1, position))
        sigma = float(torch.rand((), generator=generator, dtype=torch.float64))
        noise = noise_of(1, position, shape)
        noisy = (1 - sigma) * image + sigma * noise
        losses.append((noisy * factors - (noise - image)).square().mean())
        sigmas.append(sigma)
    mean = torch.stack(losses).mean()
    mean.backward()
    assert told.loss == pytest.approx(mean.item(), rel=1e-5)
    assert told.sigma_mean == pytest.approx(sum(sigmas) / 12, rel=1e-6)
    torch.testing.assert_close(model.factors.detach(), start - factors.grad)
    assert told.epoch == 1.0, "an epoch counts images"
    assert [each.position for each in seen] == [position // 3 for position in range(12)]
    expected = torch.stack(losses).tolist()
    assert [each.error for each in seen] == pytest.approx(expected, rel=1e-5)
    assert len({noisy.sum().item() for batch, _ in model.seen for noisy in batch}) == 12


def test_learned_weights_are_those_of_the_steps_before():
    """Within a step they stay, so that accumulation changes nothing."""
    shape = SHAPES["plain"]
    learned = LearnedWeight()
    model = Model(shape)
    step = maker(model, batch_of(shape), sigma_weight=learned)
    first = step(1, 0)
    torch.testing.assert_close(first.loss.detach(), first.errors.sum())
    learned.learn([(0.1, 1.0), (0.9, 4.0)] * 50)
    again = step(1, 0)
    factors = torch.tensor([learned(sigma) for sigma in again.sigmas])
    torch.testing.assert_close(again.loss.detach(), (again.errors * factors).sum())
