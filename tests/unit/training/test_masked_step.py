"""Masks in the loss of a step: what they leave out, and what they leave alone."""

import pytest
import torch

from tests.fixtures.small_steps import CPU, SHAPES, Model, batch_of, maker, preserved_of
from trainer_core.training.memory.velocity_error import velocity_error


def gradient(shape, batch, preserved=None):
    model = Model(shape)
    loss = maker(model, batch, preserved)(1, 0).loss
    loss.backward()
    return loss.detach(), model.factors.grad


@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES)
def test_what_has_weight_0_gives_no_gradient_and_the_rest_what_it_gave(shape):
    masks = torch.ones(2, 1, 6, 8)
    masks[..., :4] = 0.0
    loss, found = gradient(shape, batch_of(shape, range(2), masks=masks))
    whole_loss, whole = gradient(shape, batch_of(shape, range(2)))
    assert not found[..., :4].any()
    assert torch.equal(found[..., 4:], whole[..., 4:])
    assert whole[..., :4].all(), "without a mask every place has a gradient"
    assert 0 < loss < whole_loss


@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES)
def test_points_that_preserve_the_base_count_alike_everywhere(shape):
    """Joined into one pass with masked samples they have the gradient that they have alone."""
    masks = torch.zeros(2, 1, 6, 8)
    masks[:, :, :3] = 2.0
    batch, preserved = batch_of(shape, range(2), masks=masks), preserved_of(shape, 3)
    model = Model(shape)
    joined = maker(model, batch, preserved)(1, 0)
    joined.loss.backward()
    assert len(model.seen) == 1
    alone = [gradient(shape, batch), gradient(shape, None, preserved)]
    torch.testing.assert_close(joined.loss.detach(), alone[0][0] + alone[1][0])
    assert not alone[0][1][..., 3:, :].any()
    assert alone[1][1].all()
    torch.testing.assert_close(model.factors.grad, alone[0][1] + alone[1][1])
    other, unmasked = Model(shape), batch_of(shape, range(2))
    maker(other, unmasked, preserved)(1, 0).loss.backward()
    assert not torch.allclose(other.factors.grad, model.factors.grad), "masks would do nothing"


@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES)
def test_the_error_of_fewer_bits_is_that_of_what_counts(shape):
    """A base that is wrong in the background alone is not wrong where that has weight 0."""
    wrong = torch.ones(shape)
    wrong[..., :4] = 3.0

    def predict(model, noisy, sigma, conditionings, controls, guidance):
        return noisy * model()

    def error(masks):
        batch = batch_of(shape, range(2), masks=masks)
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
