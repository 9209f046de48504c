"""Layers that read one input together, where backward passes run in a thread of the device."""

import pytest
from fixtures.shared_block import OPTIONS, assert_same, everything, group, make, make_input, shares

pytestmark = pytest.mark.gpu


@pytest.mark.parametrize("name", OPTIONS)
def test_outputs_and_gradients_are_those_of_separate_layers(name):
    found = []
    for shared in (True, False):
        block, adapter = make(OPTIONS[name], shared)
        block.to("cuda")
        x = make_input().detach().to("cuda").requires_grad_(True)
        found.append([each.cpu() for each in everything(block, adapter, x)])
        if shared:
            assert "dora" in name or all(map(shares, block(x)))
            assert group(adapter).waits_for == ()
    assert_same(*found)
