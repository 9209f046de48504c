import torch

from trainer_core.adapters.parameter_groups import ParameterGroup
from trainer_core.config import OptimizerSection
from trainer_core.training.optimizers import (
    load_optimizer_tensors,
    make_optimizer,
    optimizer_tensors,
)


def test_adamw_follows_the_textbook_update():
    """Loshchilov & Hutter 2019, algorithm 2, in float64."""
    settings = OptimizerSection(learning_rate=0.01, weight_decay=0.1, beta1=0.8, beta2=0.95)
    parameter = torch.nn.Parameter(torch.randn(6, dtype=torch.float64))
    optimizer = make_optimizer(settings, [ParameterGroup((parameter,))])
    weight, mean, square = parameter.detach().clone(), torch.zeros(6), torch.zeros(6)
    for step in range(1, 6):
        gradient = torch.randn(6, dtype=torch.float64)
        parameter.grad = gradient.clone()
        optimizer.step()
        weight = weight * (1 - 0.01 * 0.1)
        mean = 0.8 * mean + 0.2 * gradient
        square = 0.95 * square + 0.05 * gradient**2
        corrected = (square / (1 - 0.95**step)).sqrt() + 1e-8
        weight = weight - 0.01 * (mean / (1 - 0.8**step)) / corrected
        torch.testing.assert_close(parameter.detach(), weight, rtol=1e-12, atol=1e-12)


def test_the_state_follows_its_parameters_into_other_groups():
    first = [torch.nn.Parameter(torch.full((2,), float(value))) for value in range(4)]
    grouped = [ParameterGroup(tuple(first))]
    before = make_optimizer(OptimizerSection(), grouped)
    for value, parameter in enumerate(first):
        parameter.grad = torch.full((2,), 10.0 + value)
    before.step()
    stored = optimizer_tensors(before)

    again = [torch.nn.Parameter(torch.zeros(2)) for _ in range(4)]
    regrouped = [
        ParameterGroup((again[1], again[3]), rate=0.5),
        ParameterGroup((again[0], again[2])),
    ]
    after = make_optimizer(OptimizerSection(), regrouped)
    load_optimizer_tensors(after, stored, [ParameterGroup(tuple(again))])
    for old, new in zip(first, again, strict=True):
        for name in ("exp_avg", "exp_avg_sq", "step"):
            assert torch.equal(before.state[old][name], after.state[new][name])
    wrong = make_optimizer(OptimizerSection(), regrouped)
    load_optimizer_tensors(wrong, stored)
    assert not torch.equal(before.state[first[0]]["exp_avg"], wrong.state[again[0]]["exp_avg"])
