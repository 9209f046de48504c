"""Initialization from the layers' inputs: PEFT's eva on the same batches."""

import torch
from fixtures.textbook import relative
from peft import EvaConfig, LoraConfig, get_peft_model, initialize_lora_eva_weights
from torch import nn

from trainer_core.adapters import attach
from trainer_core.adapters.init.eva import MOST_BATCHES, initialize_from_inputs
from trainer_core.config import AdapterConfig

WIDTH = 24


class Block(nn.Module):
    """Two layers with one input, one behind them, and one that sees a row for each sample."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.q, self.k = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)
        self.out, self.modulation = nn.Linear(WIDTH, 16), nn.Linear(WIDTH, 16)
        self.unused = nn.Linear(WIDTH, 16)
        self.requires_grad_(False)

    def forward(self, x):
        mixed = torch.tanh(self.q(x) * self.k(x))
        return self.out(mixed) * self.modulation(x[:, :1])


def make_batches(count=6, rows=40, seed=3):
    generator = torch.Generator().manual_seed(seed)
    sizes = 0.7 ** torch.arange(WIDTH)
    return [torch.randn(2, rows, WIDTH, generator=generator) * sizes + 0.3 for _ in range(count)]


def attached(rank=4, **options):
    module = Block()
    options = {"exclude": ["unused"], **options}
    return module, attach(module, AdapterConfig(kind="lora", rank=rank, init="eva", **options))


def looked(module, adapter, batches, **options):
    return initialize_from_inputs(
        adapter, lambda number: module(batches[number % len(batches)]), 0, **options
    )


def test_the_components_are_pefts():
    layers, batches = ["q", "k", "out"], make_batches()
    module, adapter = attached(exclude=["unused", "modulation"])
    seen = looked(module, adapter, batches)
    theirs = get_peft_model(
        Block(),
        LoraConfig(
            r=4, init_lora_weights="eva", target_modules=layers, eva_config=EvaConfig(rho=1.0)
        ),
    )
    initialize_lora_eva_weights(
        theirs,
        [{"x": batch} for batch in batches],
        prepare_model_inputs_fn=None,
        prepare_layer_inputs_fn=None,
        show_progress_bar=False,
    )
    for name in layers:
        layer = theirs.base_model.model.get_submodule(name)
        own = dict(adapter.named_parameters())
        assert relative(own[f"{name}.lora_down"], layer.lora_A["default"].weight) < 1e-4
        assert not own[f"{name}.lora_up"].any()
    assert (set(seen.settled), seen.unsettled, seen.unseen) == (set(layers), (), ())
    assert 1 < seen.batches < MOST_BATCHES


def test_the_first_output_is_the_bases_bit_for_bit():
    module, batches = Block(), make_batches()
    before = module(batches[0])
    adapter = attach(module, AdapterConfig(kind="lora", rank=4, init="eva", dropout=0.3))
    usual = adapter.state()
    looked(module, adapter, batches)
    assert torch.equal(module(batches[0]), before)
    for name in adapter.names:
        same = torch.equal(
            adapter.state().layers[name].tensors["lora_down"],
            usual.layers[name].tensors["lora_down"],
        )
        assert same is (name == "unused")
    assert not any(layer._forward_pre_hooks for layer in adapter.layers.values())


def test_fewer_rows_than_directions_are_completed():
    """A modulation sees one row for each sample: here two, which span one direction."""
    module, adapter = attached(rank=8)
    batch = make_batches(1)[0]
    seen = looked(module, adapter, [batch])
    down = dict(adapter.named_parameters())["modulation.lora_down"]
    rows = batch[:, 0] - batch[:, 0].mean(0)
    first = rows[0] / rows[0].norm()
    assert float((first * down[0]).detach().sum().abs()) > 0.999
    torch.testing.assert_close(down @ down.T, torch.eye(8), rtol=0, atol=1e-5)
    assert seen.unsettled == ("modulation",)
    assert seen.batches == MOST_BATCHES
    assert "settled" in seen.summary()


def test_a_stopped_look_changes_nothing():
    module, adapter = attached()
    before = {name: parameter.clone() for name, parameter in adapter.named_parameters()}
    asked = []
    assert (
        looked(module, adapter, make_batches(), stop=lambda: len(asked) > 1 or asked.append(1))
        is None
    )
    assert all(torch.equal(p, before[name]) for name, p in adapter.named_parameters())
    assert not any(layer._forward_pre_hooks for layer in adapter.layers.values())
