"""Training with swapped blocks gives the bits of training without, whatever becomes of a slot."""

import gc
import itertools
from functools import cache, partial

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from tests.fixtures.combinations import each_once
from tests.fixtures.swapped_blocks import (
    BLOCKS,
    CPU,
    MAKERS,
    HesitantTransfer,
    Trained,
    make_batch,
    swap,
)
from tests.fixtures.tables import table
from trainer_core.families.registry import get_family
from trainer_core.offload.host_weights import PageableMaster
from trainer_core.offload.model_bytes import pack_blocks
from trainer_core.offload.streamed_blocks import StreamedBlocks, slot_of
from trainer_core.offload.transfer import Transfer
from trainer_core.quantization.formats import FORMATS
from trainer_core.quantization.quantized_linear import QuantizedLinear

ADAPTERS = table(__file__, "adapters of swapped blocks")
WAYS = {
    "": {},
    "accumulation": {"accumulation": 2},
    "dropout": {"dropout": True},
    "preview": {"previews": True},
    "int8": {"int8": True},
}
SLOTS = (1, 2, 3)


def train(family, name, way, **swapped):
    options, adapter = dict(WAYS[way]), dict(ADAPTERS[name])
    if options.pop("dropout", False):
        adapter["module_dropout" if name == "oft" else "dropout"] = 0.3
    if options.pop("int8", False):
        lists = get_family(family).layers.repeated_blocks
        options["prepare"] = partial(pack_blocks, lists=lists, stored=FORMATS["int8"])
    return Trained(family, adapter, **options, **swapped)


@cache
def resident(family, name, way):
    return train(family, name, way)


def compare(family, name, way, slots, count, **swapped):
    hesitant = HesitantTransfer(seed=slots + count)
    found = train(family, name, way, count=count, slots=slots, transfer=hesitant, **swapped)
    assert found.equals(resident(family, name, way))
    sizes = [size for size, _ in hesitant.slots.values()]
    assert all(sizes.count(size) <= slots for size in sizes), "more slots than allowed"


@pytest.mark.parametrize(
    ("family", "name", "way", "slots"), each_once(BLOCKS, list(ADAPTERS)[:6], WAYS, SLOTS)
)
def test_weights_are_those_of_a_resident_run(family, name, way, slots):
    compare(family, name, way, slots, BLOCKS[family])


def test_a_block_that_ends_in_a_packed_layer_has_its_weights_in_the_backward_pass():
    """Autograd keeps nothing of such a layer that would make the block run again before it."""
    stored, seen = FORMATS["int8"], []

    class Noted(QuantizedLinear):
        def input_gradient(self, gradient):
            seen.append(self.weight.data_ptr() in slots)
            return super().input_gradient(gradient)

    parts = [stored.pack(torch.randn(6, 6)) for _ in range(3)]
    blocks = [nn.Sequential(nn.Tanh(), Noted(stored, (6, 6), each)) for each in parts]
    streamed = StreamedBlocks(blocks, CPU, 1, PageableMaster(), Transfer())
    slots = {slot.bytes.data_ptr() for slot in streamed._rings[0]}
    x = torch.randn(2, 6, requires_grad=True)
    for block in blocks:
        x = checkpoint(block, x, use_reentrant=False)
    x.sum().backward()
    streamed.close()
    assert seen == [True] * 3


def test_a_slot_that_is_read_too_late_is_noticed():
    """Without checkpointing backward would read weights of other blocks; autograd refuses."""
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        Trained("qwen_image", {"kind": "lora"}, 5, checkpointing=False)


@pytest.mark.parametrize("slots", [2, 3])
@pytest.mark.parametrize("name", BLOCKS)
def test_passes_without_gradients_wait_for_no_block_but_the_first(name, slots):
    """As while sampling: behind the last block the first one is sent for."""
    family, transformer = get_family(name), MAKERS[name]()
    noisy, sigma, conditionings, _ = make_batch(name)

    def predict():
        with torch.no_grad():
            return family.prediction.predict(transformer, noisy, sigma, conditionings, [], 2.0)

    wanted = predict()
    streamed = swap(transformer, family, BLOCKS[name], slots)
    late, need = [], streamed.need

    def noted(number):
        if slot_of(number, streamed._rings[number]) is None:
            late.append(number)
        need(number)

    streamed.need = noted
    for _ in range(4):
        assert torch.equal(predict(), wanted)
    streamed.close()
    assert late == [0]


@pytest.mark.parametrize("slots", SLOTS)
def test_a_step_loads_each_block_twice_but_for_those_in_the_slots(slots):
    found = Trained("qwen_image", {"kind": "lora"}, 5, slots)
    step = 2 * (5 - slots)
    assert found.loads == [step + slots, step]


class Chain:
    """Blocks of different weights that are called in any order, each checkpointed."""

    def __init__(self, count):
        torch.manual_seed(0)
        self.layers = [nn.Sequential(nn.Linear(6, 6), nn.Tanh()) for _ in range(count)]
        for layer in self.layers:
            layer.requires_grad_(False)

    def swap(self, slots, transfer=None):
        transfer = transfer or HesitantTransfer()
        self.streamed = StreamedBlocks(self.layers, CPU, slots, PageableMaster(), transfer)

    def run(self, order):
        """Output, and gradient of the input."""
        x = start = torch.linspace(-1, 1, 12).view(2, 6).requires_grad_()
        for number in order:
            x = checkpoint(self.layers[number], x, use_reentrant=False)
        return x.detach(), torch.autograd.grad(x.square().sum(), start)[0]


def test_an_exception_inside_a_block_leaves_the_others_right():
    resident, swapped = Chain(4), Chain(4)
    swapped.swap(2)
    for refused in range(8):  # in the forward pass, and in the backward pass
        calls = itertools.count()

        def fail(*_, calls=calls, refused=refused):
            if next(calls) == refused:
                raise ArithmeticError

        hooks = [layer[1].register_forward_pre_hook(fail) for layer in swapped.layers]
        with pytest.raises(ArithmeticError):
            swapped.run(range(4))
        for hook in hooks:
            hook.remove()
        assert all(map(torch.equal, swapped.run(range(4)), resident.run(range(4))))


def test_afterwards_everything_is_as_before_and_another_training_may_begin():
    family, hesitant = get_family("flux"), HesitantTransfer()
    transformer = MAKERS["flux"]()
    before = {name: each.clone() for name, each in transformer.state_dict().items()}
    for _ in range(2):
        streamed = swap(transformer, family, 5, 2, hesitant)
        noisy, sigma, texts, _ = make_batch("flux")
        with torch.inference_mode():
            family.prediction.predict(transformer, noisy, sigma, texts, [], 2.0)
        streamed.close()
        streamed.close()
        after = transformer.state_dict()
        assert after.keys() == before.keys()
        assert all(torch.equal(after[name], before[name]) for name in before)
        assert not any(each._forward_pre_hooks for each in transformer.modules())
        parameters = list(transformer.parameters())
        assert not any(hasattr(each, "weight_identity") for each in parameters)
        assert not any(each.is_inference() or each.requires_grad for each in parameters)
    gc.collect()
    assert len(hesitant.slots) > 2
    assert all(mark.expired() for _, mark in hesitant.slots.values())
