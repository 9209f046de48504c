"""The loss on held-out images: what it is, and that training does not notice it."""

import math

import pytest
import torch

from tests.integration.runs import metrics, run_config, tensors
from trainer_core.config import RunConfig
from trainer_core.counters import counter_seed
from trainer_core.training.objectives.validation import Validation
from trainer_core.training.run import train
from trainer_core.training.setup import step_inputs

HELD = {"share": 0.3, "every": 2, "noise_levels": 3}


def config(folder, cache, steps=5, held=HELD, **more) -> RunConfig:
    return run_config(
        folder, cache, training={"steps": steps, **more}, dataset={"validation": held}
    )


@pytest.fixture(scope="module")
def measured(tmp_path_factory, cache):
    return train(config(tmp_path_factory.mktemp("measured"), cache))


def losses(folder):
    return {m["step"]: m["validation_loss"] for m in metrics(folder) if "validation_loss" in m}


def test_it_is_measured_before_at_every_and_at_the_end(measured):
    found = losses(measured.folder)
    assert list(found) == [0, 2, 4, 5]
    assert found[0] != found[2] != found[4]
    assert len(measured.losses) == 5
    assert [m["step"] for m in metrics(measured.folder)] == [0, 1, 2, 3, 4, 5]


def test_training_is_the_same_to_the_bit_without_it(tmp_path, cache, measured, monkeypatch):
    monkeypatch.setattr(step_inputs, "hold_out", lambda *_: None)
    plain = train(config(tmp_path, cache))
    assert not losses(plain.folder)
    assert plain.losses == measured.losses
    one, other = tensors(plain.adapters[0]), tensors(measured.adapters[0])
    assert all(torch.equal(one[name], other[name]) for name in other)


def test_it_is_the_mean_squared_error_of_the_velocity(tmp_path, cache, measured, monkeypatch):
    """Brute force: one sample and level at a time, in float64, from the definition."""
    seen = []
    original = Validation.__call__

    def compared(self, step):
        result = original(self, step)
        seen.append((result.loss, brute_force(self)))
        return result

    monkeypatch.setattr(Validation, "__call__", compared)
    train(config(tmp_path, cache, steps=2))
    assert len(seen) == 2
    for found, expected in seen:
        assert found == pytest.approx(expected, rel=1e-5)
    assert seen[0][0] != pytest.approx(seen[1][0], rel=1e-5)


@torch.no_grad()
def brute_force(validation: Validation) -> float:
    dataset, predict = validation.held.dataset, validation.loss.__self__.predict
    validation.transformer.eval()
    errors = []
    for item, is_held in zip(dataset.items, dataset.validations, strict=True):
        if not is_held:
            continue
        sample = dataset.load(dataset.names.index(item.name))
        for level in range(3):
            names = "validation", item.name, item.bucket.width, item.bucket.height, level
            generator = torch.Generator().manual_seed(counter_seed(0, *names))
            noise = torch.randn(sample.latents.shape, generator=generator)
            batch = step_inputs.Batch((), (0,), sample.latents[None], (), ())
            sigma = validation.held.setup.levels(batch)[level]
            noisy = (1 - sigma) * sample.latents.double() + sigma * noise.double()
            velocity = predict(
                noisy.float()[None], torch.tensor([sigma]), [sample.conditioning], []
            )
            target = noise.double() - sample.latents.double()
            errors.append((velocity[0].double() - target).square().mean().item())
    validation.transformer.train()
    return math.fsum(errors) / len(errors)
