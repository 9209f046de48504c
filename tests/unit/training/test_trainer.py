"""The trainer on a problem small enough to follow by hand: fit a vector by mean squared error."""

import math

import pytest
import torch
from fixtures.small_trainer import Recording, small_trainer

from trainer_core.adapters import attach
from trainer_core.adapters.parameter_groups import parameter_groups
from trainer_core.config import AdapterConfig, OptimizerSection, RunConfig
from trainer_core.errors import NonFiniteError
from trainer_core.training.observer import RunRequests
from trainer_core.training.optimizers import make_optimizer, update
from trainer_core.training.step.gradients import clip_gradients
from trainer_core.training.step.micro_batch import MicroBatchResult

TARGETS = torch.tensor([[1.0, 2.0], [3.0, -1.0], [0.0, 4.0], [2.0, 2.0]])


def make_trainer(preview_every=0, broken=(), recording=None, **settings):
    recording = recording or Recording()
    parameter = torch.nn.Parameter(torch.zeros(2))
    optimizer = {"learning_rate": 0.5}
    training = {"steps": 6, "max_grad_norm": 0.0, "optimizer": optimizer, **settings}
    config = RunConfig.model_validate({"training": training, "preview": {"every": preview_every}})
    batch = config.training.batch_size

    def compute(step, micro):
        start = micro * batch
        loss = (parameter - TARGETS[start : start + batch]).square().mean(dim=1).sum()
        if step in broken:
            loss = loss * math.nan
        names = tuple(f"image {start + i}" for i in range(batch))
        yield MicroBatchResult(loss, (0.25,) * batch, names)

    parts = {"observer": recording, "recorder": recording, "generate": recording.generate}
    trainer = small_trainer(config, compute, torch.optim.SGD([parameter], lr=1.0), **parts)
    trainer.schedule = lambda step: 1 / step
    return trainer, parameter, recording


@pytest.mark.parametrize(("batch", "accumulation"), [(4, 1), (2, 2), (1, 4)])
def test_accumulated_step_is_gradient_descent_on_the_mean_over_all_samples(batch, accumulation):
    trainer, parameter, recording = make_trainer(
        batch_size=batch, gradient_accumulation_steps=accumulation, steps=3
    )
    trainer.train()
    weight = torch.zeros(2)
    for step in range(1, 4):
        assert recording.results[step - 1].loss == pytest.approx(
            (weight - TARGETS).square().mean().item(), rel=1e-6
        )
        weight = weight - 0.5 / step * (weight - TARGETS).mean(dim=0)
        torch.testing.assert_close(
            torch.tensor(recording.results[step - 1].learning_rate), torch.tensor(0.5 / step)
        )
    torch.testing.assert_close(parameter.detach(), weight)


def test_clipping_scales_the_gradient_to_the_norm_and_reports_the_norm_before():
    trainer, parameter, recording = make_trainer(batch_size=4, steps=1, max_grad_norm=0.1)
    trainer.train()
    gradient = -TARGETS.mean(dim=0)
    assert recording.results[0].grad_norm == pytest.approx(gradient.norm().item())
    assert parameter.detach().norm().item() == pytest.approx(0.5 * 0.1, rel=1e-4)


@pytest.mark.parametrize("limit", [0.0, 0.01, 1.0, 1e6])
def test_clipping_is_torchs_to_the_last_bit(limit):
    ours, theirs = ([torch.nn.Parameter(torch.zeros(n, 3)) for n in range(1, 6)] for _ in range(2))
    for index, (one, other) in enumerate(zip(ours, theirs, strict=True)):
        if index != 2:
            one.grad = torch.randn(one.shape)
            other.grad = one.grad.clone()
    expected = torch.nn.utils.clip_grad_norm_(theirs, limit or torch.inf)
    assert torch.equal(clip_gradients(ours, limit), expected)
    assert ours[2].grad is None
    assert clip_gradients([torch.nn.Parameter(torch.zeros(2))], 1.0) == 0
    for one, other in zip(ours, theirs, strict=True):
        assert one.grad is None or torch.equal(one.grad, other.grad)


def test_what_a_layer_keeps_of_its_factors_is_of_those_after_the_step():
    """Also where no pass of the step went through it: momentum moves it, or another process."""
    module = torch.nn.Sequential(torch.nn.Linear(8, 6))
    adapter = attach(module, AdapterConfig(kind="lora", rank=2, dora=True, dora_axis="output"))
    settings = OptimizerSection(learning_rate=0.1)
    optimizer = make_optimizer(settings, parameter_groups(adapter, settings))
    layer = module[0]
    with torch.no_grad():
        before = layer.norm()
    for parameter in adapter.parameters():
        parameter.grad = torch.ones_like(parameter)
    update(optimizer, list(adapter.parameters()))
    factors = layer.equation_factors()
    delta = layer.kind.delta(factors, layer.scaling["default"])
    expected = (layer.base_layer.weight + delta).norm(dim=1).detach()
    assert not torch.allclose(before.flatten(), expected)
    torch.testing.assert_close(layer.norm().flatten(), expected)


@pytest.mark.parametrize("step", [1, 3])
def test_loss_that_is_not_finite_reaches_no_weight_and_names_what_it_saw(step):
    recovery = {"skips": 0, "returns": 0}
    trainer, parameter, recording = make_trainer(broken=(step,), recovery=recovery)
    with pytest.raises(NonFiniteError) as error:
        trainer.train()
    assert recording.order == [("broken", step)]
    assert torch.isfinite(parameter).all()
    assert error.value.remedy == "what to do"
    for part in (f"the loss of step {step}", "image 0 (sigma 0.2500)"):
        assert part in str(error.value)


@pytest.mark.parametrize("step", [0, 2, 4, 6])
def test_a_cancel_while_images_are_drawn_saves_the_step_and_makes_no_other(step):
    recording = Recording(cancelled_at=step)
    trainer, _, _ = make_trainer(2, recording=recording, checkpoint_every=4, steps=6)
    assert trainer.train() == ("done" if step == 6 else "cancelled", step)
    missing = "Cancelled in the last step. Previews of it are missing."
    assert (missing in recording.warned) == (step == 6)
    assert (recording.saves, len(recording.results)) == ([4, 6] if step == 6 else [step], step)


def test_previews_and_checkpoints_fall_on_their_steps_and_a_step_is_saved_before_it_is_drawn():
    trainer, _, recording = make_trainer(preview_every=2, checkpoint_every=4, steps=6)
    assert trainer.train() == ("done", 6)
    assert recording.order == [
        *(("preview", 0), ("preview", 2), ("save", 4), ("preview", 4)),
        *(("save", 6), ("preview", 6)),
    ]
    assert [result.step for result in recording.results] == [1, 2, 3, 4, 5, 6]


@pytest.mark.parametrize(
    ("asked", "ended", "saves", "previews"),
    [
        ({3: RunRequests(cancel=True)}, ("cancelled", 3), [3], []),
        ({3: RunRequests(stop=True)}, ("done", 3), [3], []),
        ({2: RunRequests(save=True), 4: RunRequests(preview=True)}, ("done", 6), [2, 6], [4]),
    ],
    ids=["cancel", "stop", "save and preview"],
)
def test_what_is_asked_for_is_done_behind_the_step(asked, ended, saves, previews):
    trainer, _, recording = make_trainer(recording=Recording(asked))
    assert trainer.train() == ended
    assert (recording.saves, recording.previews) == (saves, previews)
    assert len(recording.results) == ended[1]
