"""Blocks that change their input in place, and read it afterwards, have the gradients of numbers.

Torch's own ``allow_mutation_on_saved_tensors`` is not a reference: it is wrong of changed parts.
"""

import itertools

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint


class Block(nn.Module):
    """Two layers, and what is done with the input around them."""

    def __init__(self, change):
        super().__init__()
        self.first, self.second = nn.Linear(6, 6).double(), nn.Linear(6, 6).double()
        self.change = change

    def forward(self, pair):
        x, y = pair
        return self.change(self, x, y)


def bound(block, x, y):
    x += block.first(x)
    x *= block.second(x)
    return x, y


def dropped(block, x, y):
    found = block.first(x)
    x.addcmul_(found, block.second(y))
    return x, y


def read_afterwards(block, x, y):
    x.addcmul_(block.first(x), y)
    y.add_(block.second(x))
    x.add_(block.first(y).tanh() * x)
    return x, y


def function_afterwards(block, x, y):
    x.add_(block.first(x))
    torch.sigmoid_(y)
    return torch.cat([x, torch.nn.functional.gelu(x)], 1)[:, 3:9], y + block.second(x)


def of_a_part(block, x, y):
    x[:, :3].addcmul_(block.first(x)[:, :3], y[:, 3:])
    x[:, 3:][:, :2].mul_(block.second(x)[:, 1:3])
    x[0] = block.first(x)[1]
    return x, block.second(x) + y


def of_an_alias(block, x, y):
    other = x
    other += block.first(x)
    return x * y, block.second(x)


def of_a_part_by_operators(block, x, y):
    part = x[:, :3]
    part += block.first(x)[:, :3]
    part *= y[:, 3:]
    return x, block.second(x) + y


FOLLOWED = (
    *(read_afterwards, function_afterwards, of_a_part),
    *(of_an_alias, of_a_part_by_operators),
)


def loss_of(block, x, y, call):
    first, second = call(block, (x * 1.0, y * 1.0))
    assert type(first) is type(second) is torch.Tensor
    return (first.sin() + second.square()).sum()


def slopes(block, x, y):
    """Central differences for every number that the block's result depends on."""
    found, step = [], 1e-6
    with torch.no_grad():
        for tensor in (x, y, *block.parameters()):
            slope = torch.zeros_like(tensor)
            for place in itertools.product(*map(range, tensor.shape)):
                value = float(tensor[place])
                ends = []
                for moved in (value + step, value - step):
                    tensor[place] = moved
                    ends.append(float(loss_of(block, x, y, lambda block, pair: block(pair))))
                tensor[place] = value
                slope[place] = (ends[0] - ends[1]) / (2 * step)
            found.append(slope)
    return found


def checkpointed(block, pair):
    return checkpoint(lambda *each: block(each), *pair, use_reentrant=False)


@pytest.mark.parametrize("change", [bound, dropped, *FOLLOWED], ids=lambda each: each.__name__)
def test_gradients_are_those_of_numbers(change, unchanged_inputs):
    holder = nn.Module()
    holder.blocks = nn.ModuleList([Block(change)])
    (block,) = holder.blocks
    x, y = torch.rand(2, 4, 6, dtype=torch.float64)
    expected, kept = slopes(block, x.clone(), y.clone()), x.clone()
    x.requires_grad_()
    y.requires_grad_()
    with unchanged_inputs.unchanged_inputs(holder, ["blocks"]):
        for call in (checkpointed, checkpointed, lambda block, pair: block(pair)):
            loss = loss_of(block, x, y, call)
            found = torch.autograd.grad(loss, [x, y, *block.parameters()])
            for one, other in zip(found, expected, strict=True):
                assert torch.allclose(one, other, atol=1e-7)
    assert torch.equal(x, kept)


@pytest.mark.parametrize("change", [bound, dropped, *FOLLOWED], ids=lambda each: each.__name__)
def test_python_is_in_the_way_only_where_something_is_read_afterwards(change, unchanged_inputs):
    kinds = []

    def noting(block, x, y):
        kinds.append(type(x))
        return change(block, x, y)

    holder = nn.Module()
    holder.blocks = nn.ModuleList([Block(noting)])
    pair = torch.rand(2, 4, 6, dtype=torch.float64, requires_grad=True) * 1
    with unchanged_inputs.unchanged_inputs(holder, ["blocks"]):
        for _ in range(2):
            holder.blocks[0](tuple(pair))
    assert kinds[0] is unchanged_inputs.Followed
    kind = "Followed" if change in FOLLOWED else "Unchanged"
    assert kinds[-1].__name__ == kind
