"""Masks in the loss of a step: what they weigh, what they leave out, and what they leave alone."""

from __future__ import annotations

import itertools

import pytest
import torch

from trainer_core.counters import counter_seed
from trainer_core.diffusion.losses import flow_loss
from trainer_core.diffusion.parameterization import EPS
from trainer_core.training.step import StepMaker
from trainer_core.training.velocity_error import velocity_error
from trainer_core.types import Batch, PreservedBatch

CPU = torch.device("cpu")
SHAPES = {"plain": (4, 6, 8), "layered": (4, 3, 6, 8)}


def random(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def batch_of(count, shape, masks=None, weights=(), first=0):
    names = tuple(f"image {first + number}" for number in range(count))
    positions = tuple(range(first, first + count))
    latents = torch.stack([random(*shape, seed=position) for position in positions])
    texts = tuple({"text_embeddings": torch.zeros(1, 2)} for _ in names)
    return Batch(names, positions, latents, (), texts, weights, masks)


def preserved_of(count, shape):
    texts = tuple({"text_embeddings": torch.zeros(1, 2)} for _ in range(count))
    noisy, velocity = random(count, *shape, seed=50), random(count, *shape, seed=51)
    return PreservedBatch(("kept",) * count, noisy, (0.4,) * count, velocity, (), texts)


class Model:
    """Predicts a multiple of what it is given, with a factor of its own for each place."""

    def __init__(self, shape):
        self.factors = (1 + 0.1 * random(*shape, seed=77)).requires_grad_()
        self.passes = 0

    def __call__(self, noisy, sigma, conditionings, controls):
        self.passes += 1
        return noisy * self.factors


def steps(model, batch, preserved=None, part=(0, 1)):
    return StepMaker(
        load=lambda step, micro: batch,
        load_preserved=lambda step, micro: preserved,
        predict=model,
        sigma_at=lambda batch, place: place,
        seed=3,
        part=part,
        device=CPU,
    )(1, 0)


def gradient(shape, batch, preserved=None):
    model = Model(shape)
    loss = steps(model, batch, preserved).loss
    loss.backward()
    return loss.detach(), model.factors.grad


@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES)
def test_the_weighed_loss_is_the_textbooks(shape):
    prediction, target = random(2, *shape, seed=1), random(2, *shape, seed=2)
    weights = random(2, 1, 6, 8, seed=3).square()
    found = flow_loss(prediction.bfloat16(), target, weights)
    assert (found.shape, found.dtype) == ((2,), torch.float32)
    expected = [0.0, 0.0]
    for sample in range(2):
        errors = []
        for place in itertools.product(*map(range, shape)):
            error = float(prediction.bfloat16()[(sample, *place)]) - float(target[(sample, *place)])
            errors.append(float(weights[sample, 0, place[-2], place[-1]]) * error**2)
        expected[sample] = sum(errors) / len(errors)
    torch.testing.assert_close(found, torch.tensor(expected), rtol=1e-5, atol=0)
    ones = torch.ones(2, 1, 6, 8)
    assert torch.equal(flow_loss(prediction, target, ones), flow_loss(prediction, target))


@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES)
def test_what_has_weight_0_gives_no_gradient_and_the_rest_what_it_gave(shape):
    masks = torch.ones(2, 1, 6, 8)
    masks[..., :4] = 0.0
    loss, found = gradient(shape, batch_of(2, shape, masks))
    whole_loss, whole = gradient(shape, batch_of(2, shape))
    assert found is not None
    assert whole is not None
    assert not found[..., :4].any()
    assert torch.equal(found[..., 4:], whole[..., 4:])
    assert whole[..., :4].all(), "without a mask every place has a gradient"
    assert 0 < loss < whole_loss


def test_without_masks_the_numbers_are_those_that_they_were():
    """The formula that stood here before there were masks, to the bit."""
    shape = SHAPES["plain"]
    batch = batch_of(3, shape, weights=(1.0, 0.5, 2.0))
    model = Model(shape)
    made = steps(model, batch)
    recorded = []

    class Recorder(Model):
        def __call__(self, noisy, sigma, conditionings, controls):
            recorded.append(noisy)
            return super().__call__(noisy, sigma, conditionings, controls)

    steps(Recorder(shape), batch)
    (noisy,) = recorded
    # eps - x_0 from x_t = (1 - s) x_0 + s eps needs the noise, which is drawn again.
    noise = torch.empty(batch.latents.shape)
    for row, position in zip(noise, batch.positions, strict=True):
        row.normal_(generator=torch.Generator().manual_seed(counter_seed(3, "noise", 1, position)))
    prediction = noisy * Model(shape).factors
    target = noise - batch.latents
    each = (prediction.float() - target.float()).square().flatten(1).mean(1)
    expected = (each * torch.tensor(batch.weights)).sum()
    assert torch.equal(made.loss, expected)
    white = batch_of(3, shape, torch.ones(3, 1, 6, 8), batch.weights)
    loss, found = gradient(shape, white)
    plain_loss, plain = gradient(shape, batch)
    assert found is not None
    assert plain is not None
    assert torch.equal(loss, plain_loss)
    assert torch.equal(found, plain)


@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES)
def test_points_that_preserve_the_base_count_alike_everywhere(shape):
    """Joined into one pass with masked samples they have the gradient that they have alone."""
    masks = torch.zeros(2, 1, 6, 8)
    masks[:, :, :3] = 2.0
    batch, preserved = batch_of(2, shape, masks), preserved_of(3, shape)
    model = Model(shape)
    joined = steps(model, batch, preserved)
    joined.loss.backward()
    assert model.passes == 1
    alone = [gradient(shape, batch), gradient(shape, None, preserved)]
    torch.testing.assert_close(joined.loss.detach(), alone[0][0] + alone[1][0])
    assert alone[0][1] is not None
    assert alone[1][1] is not None
    assert not alone[0][1][..., 3:, :].any()
    assert alone[1][1].all()
    torch.testing.assert_close(model.factors.grad, alone[0][1] + alone[1][1])
    other, unmasked = Model(shape), batch_of(2, shape)
    steps(other, unmasked, preserved).loss.backward()
    assert not torch.allclose(other.factors.grad, model.factors.grad), "masks would do nothing"


def test_parts_of_a_batch_sum_up_to_the_whole():
    shape = SHAPES["plain"]
    masks = random(4, 1, 6, 8, seed=9).square()
    whole_loss, whole = gradient(shape, batch_of(4, shape, masks))
    # The second process's part may have no mask at all: its weights are then 1.
    parts = [
        gradient(shape, batch_of(2, shape, masks[:2])),
        gradient(shape, batch_of(2, shape, masks[2:], first=2)),
    ]
    torch.testing.assert_close(parts[0][0] + parts[1][0], whole_loss)
    assert parts[0][1] is not None
    assert parts[1][1] is not None
    torch.testing.assert_close(parts[0][1] + parts[1][1], whole)


def test_the_error_of_fewer_bits_is_that_of_velocities():
    """Outputs 2 noisy and 3 noisy of eps are velocities noisy / (1 - s) and 2 noisy / (1 - s)."""

    def predict(model, noisy, sigma, conditionings, controls, guidance):
        return model() * noisy

    given = predict, lambda: lambda: 2.0, lambda: lambda: 3.0, batch_of(2, SHAPES["plain"])
    assert velocity_error(*given, 1.0, CPU) == pytest.approx(0.5)
    assert velocity_error(*given, 1.0, CPU, EPS) == pytest.approx(1.0)


@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES)
def test_the_error_of_fewer_bits_is_that_of_what_counts(shape):
    """A base that is wrong in the background alone is not wrong where that has weight 0."""
    wrong = torch.ones(shape)
    wrong[..., :4] = 3.0

    def predict(model, noisy, sigma, conditionings, controls, guidance):
        return noisy * model()

    def error(masks):
        batch = batch_of(2, shape, masks)
        given = predict, lambda: lambda: torch.ones(shape), lambda: lambda: wrong
        return velocity_error(*given, batch, 1.0, CPU)

    masks = torch.ones(2, 1, 6, 8)
    assert error(masks) == pytest.approx(error(None), rel=1e-12)
    assert error(None) > 1.0
    masks[..., :4] = 0.0
    assert error(masks) == 0.0
    masks[..., :4] = 1.0
    masks[..., 4:] = 0.0
    assert error(masks) == pytest.approx(2.0)
