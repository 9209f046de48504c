"""Layers that read one input together, inside of what is done to a model around them."""

import copy
import gc
import weakref

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
from fixtures.textbook import relative
from torch import distributed, nn
from torch.distributed.fsdp import FullyShardedDataParallel
from torch.distributed.fsdp.wrap import ModuleWrapPolicy
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils.checkpoint import checkpoint


def test_layers_that_are_checkpointed_one_by_one():
    """Each is computed again alone, in the opposite order."""

    def compute(block, adapter, x):
        def run(x):
            inside = block.before(x).tanh()
            layers = (block.q, block.k, block.v)
            return [checkpoint(layer, inside, use_reentrant=False) for layer in layers]

        return everything(run, adapter, x)

    for name in ("lora", "lokr"):
        assert_same(*both(OPTIONS[name], compute))


def test_nothing_is_kept_but_what_may_be_packed_away():
    """Checkpointing, and moving what is kept to another memory, replace what a function keeps."""
    block, adapter = make(OPTIONS["lora"])
    with torch.autograd.graph.saved_tensors_hooks(lambda _: None, lambda _: None):
        inside = block.before(make_input()).tanh()
        kept = StorageWeakRef(inside.untyped_storage())
        ys = [block.q(inside), block.k(inside), block.v(inside)]
        del inside
    assert all(shares(y) for y in ys)
    assert group(adapter).waits_for == ()
    assert kept.expired()


def test_a_factor_of_which_there_is_only_a_part_is_left_to_its_layer():
    """As FSDP keeps those of a layer that it wraps alone, while the layer does not run."""

    def compute(block, adapter, x):
        block.k.lora_A["default"].weight = nn.Parameter(torch.zeros(5))
        return [block.q(x), block.v(x)]

    assert_same(*both(OPTIONS["lora"], compute))


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


def test_hooks_on_a_layer_are_called_and_obeyed():
    def compute(block, adapter, x):
        calls = []
        block.k.register_forward_hook(lambda *_: calls.append("after"))
        block.v.register_forward_pre_hook(lambda _, inputs: (2.0 * inputs[0],))
        block.q.register_full_backward_hook(lambda *_: calls.append("back"))
        found = everything(block, adapter, x)
        assert sorted(calls) == ["after", "back"]
        return found

    assert_same(*both(OPTIONS["lora"], compute))


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


@pytest.mark.parametrize("option", ["dropout", "rank_dropout", "module_dropout"])
def test_dropouts_are_drawn_for_each_layer(option):
    def compute(block, adapter, x):
        torch.manual_seed(3)
        adapter.train()
        ys = block(x)
        assert not any(shares(y) for y in ys)
        assert bool(adapter.shared_inputs) is False or all(map(shares, evaluated(block, adapter)))
        return list(ys)

    def evaluated(block, adapter):
        adapter.eval()
        return block(make_input())

    assert_same(*both({**OPTIONS["lora"], option: 0.5}, compute))


def test_without_gradients_the_outputs_have_the_same_bits():
    block, _ = make(OPTIONS["lora"], dtype=torch.float32)
    x = make_input(dtype=torch.float32)
    expected = block(x)
    with torch.no_grad():
        assert all(torch.equal(*pair) for pair in zip(block(x), expected, strict=True))
        block.q(x)
    # What was begun without gradients is not gone on with.
    assert torch.autograd.grad(block.k(x).sum(), x)[0].any()


def test_in_inference_mode_each_layer_is_alone():
    """Its tensors do not tell when they change."""
    block, adapter = make(OPTIONS["lora"])
    with torch.inference_mode():
        found = block(make_input())
        block.q(block.before(make_input()))
    assert group(adapter).waits_for == ()
    assert_same(found, [y.detach() for y in block(make_input())])


def test_a_copy_computes_each_layer_by_itself():
    block, adapter = make(OPTIONS["lora"])
    block.q(make_input())
    assert group(adapter).waits_for == (block.k, block.v)
    other = copy.deepcopy(block)
    assert other.q.shared is not block.q.shared
    assert other.q.shared.waits_for == ()
    with torch.no_grad():
        other.q.lora_B["default"].weight.zero_()
    x = make_input()
    expected, found = block(x), other(x)
    assert not any(shares(y) for y in found)
    assert relative(expected[0], found[0]) > 1e-3
    assert_same(found[1:], expected[1:])


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


def test_a_detached_adapter_keeps_no_input_alive():
    block, adapter = make(OPTIONS["lora"])
    x = make_input()
    kept = StorageWeakRef(x.untyped_storage())
    # A leaf is part of its own graph.
    block.q(x)
    del x
    gc.collect()
    assert not kept.expired()
    adapter.detach()
    assert kept.expired()


@pytest.fixture
def process_group(tmp_path):
    if not distributed.is_available() or not distributed.is_gloo_available():
        pytest.skip("this torch has no gloo")
    store = distributed.FileStore(str(tmp_path / "store"), 1)
    distributed.init_process_group("gloo", store=store, rank=0, world_size=1)
    yield
    # A reducer of DDP that is collected later, by a thread of gloo, waits for that thread for ever.
    gc.collect()
    distributed.destroy_process_group()
    gc.collect()


@pytest.mark.parametrize("checkpointing", [False, True])
@pytest.mark.parametrize("wrapping", ["ddp", "fsdp1, around each", "fsdp1, around all"])
def test_wrapped_for_many_processes(process_group, wrapping, checkpointing):
    def compute(block, adapter, x):
        run = block
        if wrapping == "ddp":
            run = nn.parallel.DistributedDataParallel(block)
        else:
            parts = {type(block.q)} if "each" in wrapping else set()
            run = FullyShardedDataParallel(
                block,
                use_orig_params=True,
                auto_wrap_policy=ModuleWrapPolicy(parts),
                device_id=torch.device("cpu"),
            )
        parameters = [each for each in run.parameters() if each.requires_grad]
        for _ in range(2):
            ys = checkpoint(run, x, use_reentrant=False) if checkpointing else run(x)
            sum(y.square().sum() for y in ys).backward()
        return [*ys, x.grad, *(each.grad for each in parameters)]

    assert_same(*both(OPTIONS["lora"], compute))
