"""Layers that read one input together, against the same layers each for itself."""

import pytest
import torch
from fixtures.shared_block import (
    OPTIONS,
    assert_same,
    both,
    everything,
    group,
    make,
    make_input,
    shares,
)
from hypothesis import given, settings
from hypothesis import strategies as st

each_options = pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS)


@each_options
def test_outputs_and_gradients_are_those_of_separate_layers(options):
    found, expected = both(options, everything)
    assert_same(found, expected)
    block, adapter = make(options)
    assert adapter.shared_inputs == (("q", "k", "v"),)
    block(make_input())
    assert group(adapter).waits_for == ()


def test_the_layers_really_share_in_these_tests():
    block, _ = make(OPTIONS["lora"])
    assert all(shares(y) for y in block(make_input()))
    block, _ = make(OPTIONS["lora"], shared=False)
    assert not any(shares(y) for y in block(make_input()))


@settings(max_examples=40, deadline=None, derandomize=True)
@given(
    name=st.sampled_from(sorted(OPTIONS)),
    called=st.permutations("qkv").flatmap(
        lambda order: st.integers(1, 3).map(lambda number: order[:number])
    ),
    used=st.sets(st.integers(0, 2), min_size=1),
    again=st.booleans(),
    batch=st.sampled_from([(), (1,), (4,), (2, 3), (2, 1, 3), (0, 4)]),
    frozen=st.sets(st.integers(0, 5)),
    input_learns=st.booleans(),
)
def test_any_use_gives_what_separate_layers_give(
    name, called, used, again, batch, frozen, input_learns
):
    """Any order, layers that are not called, outputs that are not used, factors that are frozen."""
    found = []
    for shared in (True, False):
        block, adapter = make(OPTIONS[name], shared)
        for index, parameter in enumerate(adapter.parameters()):
            parameter.requires_grad_(index not in frozen)
        x = torch.randn(*batch, 24, generator=torch.Generator().manual_seed(1)).double()
        x.requires_grad_(input_learns)
        leaves = [x, *adapter.parameters()]
        leaves = [leaf for leaf in leaves if leaf.requires_grad]
        inside = x * 1.0
        ys = [getattr(block, each)(inside) for each in called]
        if again:
            ys += [getattr(block, each)(inside) for each in called]
        chosen = [y.square().sum() for index, y in enumerate(ys) if index in used]
        chosen = [y for y in chosen if y.requires_grad]
        gradients = [None for _ in leaves]
        if chosen:
            gradients = torch.autograd.grad(sum(chosen), leaves, allow_unused=True)
        found.append([*ys, *gradients])
    assert_same(*found)


def test_what_nobody_wrote_reaches_no_gradient():
    """Memory is not cleared where nobody adds to it; here it is filled with what is not a
    number."""

    def compute(block, adapter, x):
        ys = block(x)
        leaves = [x, *adapter.parameters()]
        return torch.autograd.grad(ys[1].square().sum(), leaves, allow_unused=True)

    torch.use_deterministic_algorithms(True)
    try:
        assert torch.empty(3).isnan().all()
        assert_same(*both(OPTIONS["lora"], compute))
    finally:
        torch.use_deterministic_algorithms(False)


def doubled(tensors):
    with torch.no_grad():
        for each in tensors:
            each *= 2.0


CHANGES = {
    "an input that learns": lambda block, adapter, x: x.requires_grad_(True),
    "a factor that learns": lambda block, adapter, x: adapter.parameters()[0].requires_grad_(True),
    "another input": lambda block, adapter, x: doubled([x]),
    "other factors": lambda block, adapter, x: doubled(adapter.parameters()),
}


@pytest.mark.parametrize("case", CHANGES)
def test_what_changes_between_two_calls_is_read_again(case):
    def compute(block, adapter, x):
        x = x.detach().clone()
        adapter.parameters()[0].requires_grad_(False)
        first = block.q(x)
        CHANGES[case](block, adapter, x)
        later = [block.k(x), block.v(x)]
        leaves = [each for each in (x, *adapter.parameters()) if each.requires_grad]
        # What the first call kept may have been written over since.
        ys = later if case.startswith(("another", "other")) else [first, *later]
        loss = sum(y.square().sum() for y in ys)
        gradients = torch.autograd.grad(loss, leaves, allow_unused=True)
        return [first.detach(), *later, *gradients]

    assert_same(*both(OPTIONS["lora"], compute))
