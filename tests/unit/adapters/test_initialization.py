"""The initialization that `adapter.init` names."""

import pytest
import torch
from fixtures.small_module import make_input, make_module
from fixtures.textbook import make_plan
from peft import LoraConfig, inject_adapter_in_model
from torch import nn

from trainer_core.adapters import attach
from trainer_core.adapters.kinds.registry import KINDS
from trainer_core.config import AdapterConfig
from trainer_core.errors import AdapterError


def first_values(init, rank=8, inputs=256, outputs=192, seed=3, **options):
    plan = make_plan("lora", inputs, outputs, rank, init=init, **options)
    return KINDS["lora"].initial_factors(plan, seed)


def test_gaussian_is_pefts():
    rank = 8
    ours = first_values("gaussian", rank)
    assert not ours["lora_up"].any()
    theirs = nn.Sequential(nn.Linear(256, 192))
    torch.manual_seed(0)
    config = LoraConfig(r=rank, init_lora_weights="gaussian", target_modules=["0"])
    inject_adapter_in_model(config, theirs)
    reference = theirs[0].lora_A["default"].weight
    assert reference.shape == ours["lora_down"].shape
    for weight in (reference.detach(), ours["lora_down"]):
        # 2048 numbers: their deviation is known to about 1.6 %.
        assert abs(float(weight.std()) * rank - 1) < 0.06
        assert abs(float(weight.mean())) * rank < 0.07
    # LyCORIS's uniform numbers have another deviation here: the test can tell.
    assert abs(float(first_values("default", rank)["lora_down"].std()) * rank - 1) > 0.5


def test_orthogonal_is_pefts_in_turned_coordinates():
    """PEFT's formula, from our numbers and any orthogonal matrix, gives a turned pair of ours."""
    rank = 8
    ours = {name: value.double() for name, value in first_values("orthogonal", rank).items()}
    turn = torch.linalg.qr(torch.randn(rank, rank, dtype=torch.float64))[0]
    left, right = ours["lora_down"][0::2].t() * 10, ours["lora_up"][:, 1::2] * 10
    down = left.mm(turn[0::2, :]).T / 10.0
    up = right.mm(turn[1::2, :]) / 10.0
    torch.testing.assert_close(down, turn.T @ ours["lora_down"])
    torch.testing.assert_close(up, ours["lora_up"] @ turn)
    assert float((up @ down).norm()) < 1e-13 * float(up.norm() * down.norm())
    # One step of gradient descent changes the delta alike.
    g = torch.randn(192, 256, dtype=torch.float64)
    rate = 0.01

    def stepped(up, down):
        return (up - rate * g @ down.T) @ (down - rate * up.T @ g)

    torch.testing.assert_close(stepped(up, down), stepped(ours["lora_up"], ours["lora_down"]))
    assert float(left.std()) == pytest.approx(1.0, abs=0.06)
    assert float(right.std()) == pytest.approx(1.0, abs=0.06)


@pytest.mark.parametrize("rank", [1, 2, 3, 8])
def test_every_part_of_the_rank_can_learn_from_orthogonal_values(rank):
    values = first_values("orthogonal", rank)
    either = values["lora_down"].any(dim=1) ^ values["lora_up"].any(dim=0)
    assert bool(either.all())


@pytest.mark.parametrize("kind", ["loha", "lokr"])
def test_other_kinds_refuse_loras_values(kind):
    module, x = make_module(), make_input()
    before = module(x)
    config = AdapterConfig(kind=kind, rank=2, init="gaussian")
    with pytest.raises(AdapterError, match=f"adapter.init is gaussian and adapter.kind is {kind}"):
        attach(module, config)
    assert torch.equal(module(x), before)
    attach(module, AdapterConfig(kind=kind, rank=2))
