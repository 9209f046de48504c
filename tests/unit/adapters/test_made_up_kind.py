"""A kind that nobody knows is one record and one line: it attaches, trains, merges and moves."""

import pytest
import torch
from fixtures.small_module import make_input, make_module
from fixtures.textbook import relative
from torch import nn

from trainer_core.adapters import attach
from trainer_core.adapters.kinds.kind import Kind, scaled
from trainer_core.adapters.kinds.registry import KINDS
from trainer_core.config import AdapterConfig

BIAS = Kind(
    name="shift",
    factor_names=("shift_rows", "shift_columns"),
    shapes=lambda plan: {"shift_rows": (plan.outputs, 1), "shift_columns": (1, plan.width)},
    initializers={"shift_columns": lambda factor, generator: factor.fill_(1.0)},
    scale=lambda factors, alpha, rank: alpha,
    delta=lambda factors, scale: factors["shift_rows"] @ factors["shift_columns"] * scale,
    apply=lambda x, factors, scale: (
        (x @ factors["shift_columns"].to(x.dtype).t())
        @ scaled(factors["shift_rows"], scale, x.dtype).t()
    ),
    convolve=lambda window, x, factors, scale: x,
)
"""An outer product: a LoRA of rank 1, in a form of its own."""


@pytest.fixture
def shift():
    KINDS["shift"] = BIAS
    yield AdapterConfig.model_construct(
        **{**AdapterConfig().model_dump(), "kind": "shift", "rank": 1, "alpha": 2.0}
    )
    del KINDS["shift"]


def test_a_kind_without_any_class_of_pefts_trains_and_merges(shift):
    module = make_module()
    before = module(make_input())
    adapter = attach(module, shift)
    assert torch.equal(module(make_input()), before)
    assert [name for name, _ in adapter.named_parameters()] == [
        f"{layer}.{factor}" for layer in ("0", "2.0") for factor in sorted(BIAS.factor_names)
    ]
    optimizer = torch.optim.SGD(adapter.parameters(), 0.1)
    module(make_input()).square().sum().backward()
    optimizer.step()
    trained = module(make_input())
    assert relative(trained, before) > 1e-3
    adapter.merge()
    assert relative(module(make_input()), trained) < 1e-5
    state = adapter.state()
    adapter.detach()
    assert torch.equal(module(make_input()), before)
    again = attach(module, shift)
    again.load_state(state)
    assert torch.equal(module(make_input()), trained)
    frozen = [p for n, p in module.named_parameters() if "shift" not in n]
    assert not any(p.requires_grad for p in frozen)
    assert isinstance(module, nn.Sequential)
