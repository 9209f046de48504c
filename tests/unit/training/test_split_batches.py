"""Parts of a micro-batch sum up to the whole one, and are as small as was asked."""

from dataclasses import replace

import pytest
import torch

from tests.fixtures.small_steps import SHAPES, Model, batch_of, maker, preserved_of, random
from trainer_core.diffusion.weighting import make_sigma_weight
from trainer_core.training.objectives.preservation_twins import BaseAnswers
from trainer_core.training.step.split_batches import SplitBatches


def halved(given, times, **options):
    split = SplitBatches(given, **options)
    list(split(1, 0))
    for _ in range(times):
        assert split.can_halve
        split.halve()
    return split


def trained(model, parts):
    """The gradient and all else that a step knows of its micro-batch."""
    model.factors.grad = None
    found = []
    for part in parts:
        part.loss.backward()
        found.append(part)
    facts = [
        [each for part in found for each in getattr(part, name)]
        for name in ("sigmas", "names", "positions")
    ]
    errors = torch.cat([part.errors for part in found])
    return model.factors.grad, sum(part.loss.item() for part in found), facts, errors, len(found)


@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES)
@pytest.mark.parametrize("other", ["joined", "apart", "none"])
@pytest.mark.parametrize("masked", [False, True])
def test_parts_sum_up_to_the_whole(shape, other, masked):
    masks = random(3, *([1] * (len(shape) - 2)), 6, 8, seed=9).square() if masked else None
    batch = batch_of(shape, weights=(1.0, 0.5, 2.0), masks=masks)
    held = None if other == "none" else preserved_of(shape)
    if held is not None and other == "apart":
        # Of other sizes, as ordinary points may be.
        held = replace(held, noisy=held.noisy[..., :4], output=held.output[..., :4])
    model = Model(shape)

    def predict(noisy, *_):
        return noisy * model.factors[..., : noisy.shape[-1]]

    weigh = make_sigma_weight("cosmap", 5.0)
    given = replace(maker(model, batch, held, sigma_weight=weigh), predict=predict)
    expected = trained(model, [given(1, 0)])
    assert expected[-1] == 1
    for times, count in ((1, 2), (2, 4)) if other == "joined" else ((1, 2),):
        found = trained(model, halved(given, times)(1, 0))
        assert found[2] == expected[2]
        assert found[-1] == count + (other == "apart")
        assert found[1] == pytest.approx(expected[1], rel=1e-6)
        torch.testing.assert_close(found[0], expected[0])
        torch.testing.assert_close(found[3], expected[3])


def test_what_the_base_says_is_asked_for_in_each_part():
    shape = SHAPES["plain"]
    model, batch = Model(shape), batch_of(shape)
    calls = []

    class Adapter:
        strength = 1.0

    adapter = Adapter()

    def predict(noisy, *_):
        calls.append((adapter.strength, len(noisy)))
        return noisy * (model.factors if adapter.strength else 1.0)

    given = maker(model, batch)
    answers = BaseAnswers(predict, adapter, given.device)  # pyright: ignore[reportArgumentType]
    twins = (batch_of(shape, positions=(3, 4)), 1)
    given = replace(given, predict=predict, load_twins=lambda *_: twins, fill_targets=answers)
    expected = trained(model, [given(1, 0)])
    assert calls == [(0.0, 2), (1.0, 5)]
    calls.clear()
    split = halved(given, 1)
    calls.clear()
    found = trained(model, split(1, 0))
    assert calls == [(1.0, 3), (0.0, 2), (1.0, 2)]
    assert found[2] == expected[2]
    torch.testing.assert_close(found[0], expected[0])
