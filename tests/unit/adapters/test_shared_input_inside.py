"""Layers that read one input together, inside of what is done to a model around them."""

import gc
import weakref

import pytest
import torch
from fixtures.shared_block import OPTIONS, assert_same, both, group, make, make_input, shares
from torch.multiprocessing.reductions import StorageWeakRef


def test_no_input_outlives_its_graph():
    gc.collect()
    gc.disable()
    try:
        block, adapter = make(OPTIONS["lora"])
        x = make_input()
        seen = weakref.ref(x)
        ys = block(x)
        del x, ys
        assert seen() is None
        for name in ("lora", "loha"):
            block, adapter = make(OPTIONS[name])
            x = make_input()
            seen = weakref.ref(x)
            y = block.q(x)
            assert group(adapter).waits_for
            y.sum().backward()
            del x, y
            assert seen() is None
    finally:
        gc.enable()


def hooked(block, adapter):
    block.k.base_layer.register_forward_hook(lambda *_: None)


def disabled(block, adapter):
    block.k.enable_adapters(False)


def merged(block, adapter):
    block.k.merge()


def at_strength_zero(block, adapter):
    block.k.strength = 0.0


@pytest.mark.parametrize("change", [hooked, disabled, merged, at_strength_zero])
def test_one_layer_apart_leaves_the_others_together(change):
    def compute(block, adapter, x):
        change(block, adapter)
        ys = block(x)
        if adapter.shared_inputs:
            assert [shares(y) for y in ys] == [True, False, True]
            assert group(adapter).waits_for == ()
        leaves = [each for each in (x, *adapter.parameters()) if each.requires_grad]
        loss = sum(y.square().sum() for y in ys)
        return [*ys, *torch.autograd.grad(loss, leaves, allow_unused=True)]

    assert_same(*both(OPTIONS["lora"], compute))


@pytest.mark.parametrize("learning", [True, False])
def test_an_exception_between_two_layers_keeps_nothing_alive(learning):
    block, adapter = make(OPTIONS["lora"])
    gc.collect()
    gc.disable()
    try:
        with torch.set_grad_enabled(learning):
            before = block.before(make_input()).exp()
            inside = before.tanh()
            kept = [StorageWeakRef(each.untyped_storage()) for each in (before, inside)]
            del before
            block.q(inside)
            assert group(adapter).waits_for
            del inside
        assert group(adapter).waits_for == ()
        assert all(each.expired() for each in kept)
    finally:
        gc.enable()
