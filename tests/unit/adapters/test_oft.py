"""OFT turns blocks of the frozen layer's outputs, against its formula and PEFT's own rotation."""

import pytest
import torch
from fixtures.small_module import make_input, make_module, randomize
from fixtures.textbook import relative
from peft.tuners.oft.layer import OFTRotationModule
from torch import nn

from trainer_core.adapters import attach
from trainer_core.adapters.attach_state import attach_state
from trainer_core.adapters.kinds.oft import BLOCKS, turns
from trainer_core.adapters.warm_start import start_from
from trainer_core.config import AdapterConfig
from trainer_core.errors import AdapterError


def attached(module, rank=4, **options):
    adapter = attach(module, AdapterConfig(kind="oft", rank=rank, **options))
    randomize(adapter)
    return adapter


def rotation(blocks):
    """The textbook's: Cayley's R of every block, on the diagonal."""
    size = int(blocks.shape[1] ** 0.5)
    square = blocks.double().view(-1, size, size)
    skew, identity = square - square.mT, torch.eye(size, dtype=torch.float64)
    return torch.block_diag(*((identity + skew) @ torch.linalg.inv(identity - skew)))


def by_hand(module, adapter, x):
    """The module with weights that are rotated before they are used."""
    first, second = (adapter.layers[name] for name in ("0", "2.0"))
    weights = [
        rotation(each.factors()[BLOCKS].detach()).T @ each.frozen_weight().double()
        for each in (first, second)
    ]
    bias = first.get_base_layer().bias.double()
    hidden = nn.functional.gelu(nn.functional.linear(x.double(), weights[0], bias))
    return nn.functional.linear(hidden, weights[1])


def test_the_output_is_that_of_rotated_weights():
    module = make_module(torch.float64)
    before = module(make_input(torch.float64))
    adapter = attach(module, AdapterConfig(kind="oft", rank=4))
    assert torch.equal(module(make_input(torch.float64)), before)
    randomize(adapter)
    found = module(make_input(torch.float64))
    assert relative(found, by_hand(module, adapter, make_input())) < 1e-12
    assert relative(found, before) > 0.1


def test_the_gradients_are_those_of_the_formula():
    module = make_module(torch.float64)
    adapter = attached(module)
    x = make_input(torch.float64).requires_grad_()
    inputs = (x, *adapter.parameters())
    assert torch.autograd.gradcheck(lambda *given: module(given[0]), inputs)


def test_the_turn_is_peft_rotation_the_other_way_round():
    """PEFT has the entries above the diagonal in a row, and Q the other way round."""
    torch.manual_seed(3)
    square = torch.randn(3, 5, 5, dtype=torch.float64)
    skew = square - square.mT
    rows, columns = torch.triu_indices(5, 5, 1)
    theirs = OFTRotationModule(3, 10, 5, 15, use_cayley_neumann=False)
    rotated = theirs._cayley_batch(skew[:, rows, columns].float(), 5, use_cayley_neumann=False)
    own = turns(square.flatten(1)) + torch.eye(5, dtype=torch.float64)
    assert relative(own.mT.float(), rotated) < 1e-5
    assert relative(own.mT @ own, torch.eye(5).double().expand(3, 5, 5)) < 1e-12


def test_a_small_turn_keeps_its_digits():
    blocks = torch.randn(4, 9) * 1e-6
    assert relative(turns(blocks), turns(blocks.double())) < 1e-5


@pytest.mark.parametrize("strength", [1.0, 0.5, 0.0])
def test_merging_gives_the_same_output_and_unmerging_the_weight(strength):
    module = make_module()
    plain = module(make_input())
    adapter = attached(module)
    adapter.strength = strength
    beside = module(make_input())
    adapter.merge()
    assert relative(module(make_input()), beside) < 1e-5
    adapter.unmerge()
    adapter.detach()
    assert torch.equal(module(make_input()), plain)


@pytest.mark.parametrize("conv", [nn.Conv1d, nn.Conv2d, nn.Conv3d])
def test_a_convolution_is_turned_at_each_place(conv):
    torch.manual_seed(0)
    module = nn.Sequential(conv(6, 8, 3, padding=1, stride=2)).double()
    adapter = attach(module, AdapterConfig(kind="oft", rank=4), {"0": module[0]})
    randomize(adapter)
    x = torch.randn(2, 6, *[5] * (module[0].base_layer.weight.dim() - 2), dtype=torch.float64)
    beside = module(x)
    weight = module[0].frozen_weight()
    rotated = rotation(adapter.layers["0"].factors()[BLOCKS].detach()).T @ weight.flatten(1)
    assert relative(adapter.delta_weight("0"), rotated.view(weight.shape) - weight) < 1e-12
    adapter.merge()
    assert relative(module(x), beside) < 1e-12


def test_a_state_is_taken_over_and_attached_again():
    module = make_module()
    adapter = attached(module, rank=4)
    expected, state = module(make_input()), adapter.state()
    assert {layer.rank for layer in state.layers.values()} == {4}
    adapter.detach()
    again = make_module()
    attach_state(again, state)
    assert torch.equal(again(make_input()), expected)
    started = make_module()
    start_from(started, attach(started, AdapterConfig(kind="oft", rank=4)), state)
    assert torch.equal(started(make_input()), expected)
    other = make_module()
    with pytest.raises(AdapterError, match=r"blocks of 4 where[\s\S]*rank to 4"):
        start_from(other, attach(other, AdapterConfig(kind="oft", rank=2)), state)


@pytest.mark.parametrize("options", [{"dora": True}, {"dropout": 0.1}, {"rank": 1}])
def test_what_has_no_meaning_is_refused(options):
    with pytest.raises(AdapterError):
        attach(make_module(), AdapterConfig(**{"kind": "oft", "rank": 4, **options}))
