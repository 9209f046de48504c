"""The base's weights may move, be away or be replaced at every point of a training."""

import functools

import pytest
import torch
from fixtures.combinations import pairwise
from fixtures.moved_weights import KINDS, POINTS, bases, make_module
from fixtures.small_module import DORA, attached
from fixtures.textbook import relative
from torch import nn

from trainer_core.adapters.base.dense_weight import dense_weight
from trainer_core.adapters.dora_magnitude import DORA_SCALE
from trainer_core.errors import AdapterError

each_axis = pytest.mark.parametrize("dora", DORA)


def replace_storage(layer):
    """Other memory with the same numbers; what still reads the old one gets no number at all."""
    for parameter in layer.parameters():
        old = parameter.data
        parameter.data = old.clone()
        old.fill_(torch.nan)


def free_and_fill(layer):
    """No memory at all for a while, as sharding and offloading do it."""
    for parameter in layer.parameters():
        numbers = parameter.data.clone()
        parameter.data = torch.empty(0)
        parameter.data = numbers


def through_bfloat16(layer):
    layer.to(torch.bfloat16)
    layer.to(torch.float32)


def through_meta(layer):
    """To the meta device, which makes other parameters of them, and back as others again."""
    numbers = {name: parameter.data.clone() for name, parameter in layer.named_parameters()}
    layer.to("meta")
    for name, value in numbers.items():
        setattr(layer, name, nn.Parameter(value, requires_grad=False))


MOVES = (replace_storage, free_and_fill, through_bfloat16, through_meta)


def train(options, move=None, point=None):
    """Three steps of training; returns every output, the trained factors and the base's weights."""

    def reach(here):
        if move is not None and here == point:
            for layer in bases(module):
                move(layer)

    module = make_module()
    adapter = attached(module, options)
    optimizer = torch.optim.SGD(adapter.parameters(), lr=0.05)
    generator = torch.Generator().manual_seed(3)
    outputs = []
    reach(POINTS[0])
    for _ in range(3):
        x = torch.randn(5, 24, generator=generator).requires_grad_(True)
        y = module(x)
        reach(POINTS[1])
        y.square().mean().backward()
        outputs += [y.detach(), x.grad]
        optimizer.step()
        optimizer.zero_grad()
        reach(POINTS[2])
    reach(POINTS[3])
    adapter.detach()
    weights = [parameter.detach() for parameter in module.parameters()]
    return [*outputs, *(parameter.detach() for parameter in adapter.parameters()), *weights]


@functools.cache
def unmoved(options):
    return train(dict(options))


@pytest.mark.parametrize(("options", "dora", "move", "point"), pairwise(KINDS, DORA, MOVES, POINTS))
def test_a_training_is_the_same_wherever_the_weights_move(options, dora, move, point):
    options = {**options, **dora}
    expected, found = unmoved(tuple(options.items())), train(options, move, point)
    for value, reference in zip(found, expected, strict=True):
        assert relative(value, reference) < 1e-6


def test_a_move_that_loses_the_numbers_is_told_apart():
    """The check above can fail: one weight that was not brought back changes everything."""
    options = {**KINDS[0], **DORA[1]}

    def lose(layer):
        layer.weight.data = layer.weight.data * 1.5

    expected, found = train(options), train(options, lose, POINTS[1])
    assert max(map(relative, found, expected)) > 1e-2


@pytest.mark.parametrize("options", [KINDS[0], KINDS[3]])
@each_axis
def test_converting_the_module_keeps_the_factors_precise(options, dora):
    module = make_module()
    adapter = attached(module, {**options, **dora})
    before = [parameter.detach().clone() for parameter in adapter.parameters()]
    x = torch.randn(5, 24)
    expected = module(x)
    module(x).sum().backward()
    module.to(torch.bfloat16)
    assert {layer.weight.dtype for layer in bases(module)} == {torch.bfloat16}
    for parameter, value in zip(adapter.parameters(), before, strict=True):
        assert parameter.grad.dtype == torch.float32
        assert torch.equal(parameter, value)
    assert relative(module(x.bfloat16()).float(), expected) < 2e-2
    module.double()
    assert {parameter.dtype for parameter in adapter.parameters()} == {torch.float64}


def by_definition(layer):
    """|W + D| from the base's present numbers."""
    factors = {name: value.detach() for name, value in layer.factors().items()}
    axis = 1 if factors.pop(DORA_SCALE).shape[0] > 1 else 0
    weight = dense_weight(layer.get_base_layer()).float()
    return (weight + layer.kind.delta(factors, layer.scaling["default"])).norm(dim=axis)


def load_other(layer):
    layer.load_state_dict({name: value * 1.5 for name, value in layer.state_dict().items()})


def assign_other(layer):
    layer.weight = nn.Parameter(layer.weight.data * 1.5, requires_grad=False)


def replace_data(layer):
    layer.weight.data = layer.weight.data * 1.5


@pytest.mark.parametrize("change", [load_other, assign_other, replace_data])
@pytest.mark.parametrize("dora", DORA[1:])
def test_the_norm_follows_the_weights_numbers(dora, change):
    module = make_module()
    attached(module, {**KINDS[0], **dora})
    layer = module[0]
    first = layer.norm()
    assert layer.norm() is first, "the same numbers are not looked at again"
    change(layer.get_base_layer())
    assert relative(layer.norm(), by_definition(layer)) < 1e-6
    assert relative(layer.norm(), first) > 1e-2


@pytest.mark.parametrize("options", KINDS)
def test_weights_that_are_brought_in_for_each_call_are_computed_with(options):
    """Accelerate keeps them on the meta device, and fills them in around each forward pass."""
    from accelerate import cpu_offload
    from accelerate.hooks import remove_hook_from_module

    results = []
    for offloaded in (False, True):
        module = make_module()
        adapter = attached(module, options)
        for layer in bases(module) if offloaded else ():
            cpu_offload(layer, execution_device=torch.device("cpu"))
            assert layer.weight.is_meta
        x = torch.randn(5, 24, generator=torch.Generator().manual_seed(4)).requires_grad_(True)
        y = module(x)
        results.append([y, *torch.autograd.grad(y.square().sum(), [x, *adapter.parameters()])])
        for layer in bases(module):
            remove_hook_from_module(layer)
        adapter.detach()
    for value, reference in zip(*results, strict=True):
        assert relative(value, reference) < 1e-6


def test_dora_on_weights_that_are_brought_in_for_each_call_is_refused():
    from accelerate import cpu_offload

    module = make_module()
    attached(module, {**KINDS[0], **DORA[2]})
    cpu_offload(bases(module)[0], execution_device=torch.device("cpu"))
    with pytest.raises(AdapterError, match=r"0 has a weight without(.|\n)*adapter\.dora to false"):
        module(torch.randn(5, 24))
