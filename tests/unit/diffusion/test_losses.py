"""The losses against their textbook formulas in float64, and against Diffusers' scripts."""

import itertools
import math

import pytest
import torch
from diffusers.training_utils import compute_loss_weighting_for_sd3

from trainer_core.diffusion.losses import FlowLoss
from trainer_core.diffusion.weighting import make_sigma_weight

SHAPES = {"plain": (3, 4, 6, 8), "with frames": (3, 4, 2, 6, 8)}
SIGMAS = torch.tensor([0.0, 0.35, 1.0])
LOSSES = {
    "mse": FlowLoss(),
    "mae": FlowLoss("mae"),
    "huber": FlowLoss("huber", 0.3),
    "huber by sigma": FlowLoss("huber", 0.05, scheduled=True),
}


def textbook(loss: FlowLoss, error: float, sigma: float) -> float:
    """What one error costs, by the formula as it is published, in float64."""
    if loss.kind == "mse":
        return error * error
    if loss.kind == "mae":
        return abs(error)
    delta = math.exp(sigma * math.log(loss.delta)) if loss.scheduled else loss.delta
    return 2 * delta * (math.sqrt(error * error + delta * delta) - delta)


def drawn(shape, seed=0):
    generator = torch.Generator().manual_seed(seed)
    prediction, target = torch.randn(2, *shape, generator=generator)
    weights = torch.rand(shape[0], 1, *shape[-2:], generator=generator)
    return prediction, target, weights


@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES)
@pytest.mark.parametrize("loss", LOSSES.values(), ids=LOSSES)
def test_a_loss_is_the_textbooks(loss, shape, masked):
    prediction, target, weights = drawn(shape)
    found, plain = loss(prediction, target, SIGMAS, weights if masked else None)
    for sample in range(3):
        costs = []
        for place in itertools.product(*map(range, shape[1:])):
            error = float(prediction[(sample, *place)].double() - target[(sample, *place)].double())
            share = float(weights[sample, 0, place[-2], place[-1]]) if masked else 1.0
            costs.append(share * textbook(loss, error, float(SIGMAS[sample])))
        assert float(found[sample]) == pytest.approx(sum(costs) / len(costs), rel=1e-5)
    squared, _ = FlowLoss()(prediction, target, SIGMAS, weights if masked else None)
    assert torch.equal(plain, squared)


@pytest.mark.parametrize("loss", LOSSES.values(), ids=LOSSES)
def test_a_gradient_is_the_textbooks(loss):
    """Of float64 through Diffusers' own form of the formula."""
    prediction, target, _ = drawn(SHAPES["plain"])
    prediction.requires_grad_()
    loss(prediction, target, SIGMAS)[0].sum().backward()
    exact = prediction.detach().double().requires_grad_()
    error = exact - target.double()
    delta = (loss.delta**SIGMAS if loss.scheduled else torch.full((3,), loss.delta)).double()
    delta = delta.reshape(3, 1, 1, 1)
    cost = {
        "mse": error**2,
        "mae": error.abs(),
        "huber": 2 * delta * ((error**2 + delta**2).sqrt() - delta),
    }[loss.kind]
    cost.flatten(1).mean(1).sum().backward()
    torch.testing.assert_close(prediction.grad.double(), exact.grad, rtol=1e-5, atol=1e-9)


@pytest.mark.parametrize("scheme", ["none", "sigma_sqrt", "logit_normal", "mode", "cosmap"])
def test_a_weighted_loss_is_that_of_diffusers_flow_scripts(scheme):
    """Every scheme of theirs on all 1000 levels; logit_normal and mode draw, and weigh nothing."""
    sigmas = torch.arange(1, 1001) / 1000
    generator = torch.Generator().manual_seed(2)
    prediction, target = torch.randn(2, 1000, 2, 4, 4, generator=generator)
    weighting = compute_loss_weighting_for_sd3(scheme, sigmas.reshape(-1, 1, 1, 1))
    theirs = torch.mean(
        (weighting.float() * (prediction.float() - target.float()) ** 2).reshape(1000, -1), 1
    )
    weigh = make_sigma_weight(scheme if scheme in {"sigma_sqrt", "cosmap"} else "none", 5.0)
    factors = torch.tensor([1.0 if weigh is None else weigh(float(each)) for each in sigmas])
    found = FlowLoss()(prediction, target, sigmas)[0] * factors
    torch.testing.assert_close(found, theirs, rtol=1e-6, atol=0)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("loss", LOSSES.values(), ids=LOSSES)
def test_half_precision_is_measured_in_float32(loss, dtype):
    prediction = torch.full((1, 1, 2, 2), 300.0, dtype=dtype)
    target = torch.zeros_like(prediction)
    found, plain = loss(prediction, target, torch.ones(1))
    assert found.dtype == plain.dtype == torch.float32
    assert plain.item() == 90000.0
    assert found.item() == loss(prediction.float(), target.float(), torch.ones(1))[0].item()


@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("name", ["mse", "huber", "huber by sigma"])
def test_differential_guidance_moves_the_target_and_tells_the_real_loss(name, masked):
    loss = LOSSES[name]
    guided = FlowLoss(loss.kind, loss.delta, loss.scheduled, guidance=3.0)
    prediction, target, weights = drawn(SHAPES["plain"])
    given = weights if masked else None
    prediction.requires_grad_()
    found, plain = guided(prediction, target, SIGMAS, given)
    found.sum().backward()
    real, real_plain = loss(prediction.detach(), target, SIGMAS, given)
    assert torch.equal(found.detach(), real)
    assert torch.equal(plain, real_plain)
    # As its author writes it: the target is another one.
    other = prediction.detach().clone().requires_grad_()
    moved = other.detach() + 3.0 * (target - other.detach())
    loss(other, moved, SIGMAS, given)[0].sum().backward()
    torch.testing.assert_close(prediction.grad, other.grad, rtol=1e-5, atol=1e-9)
