"""Layers that are trained as the one that ComfyUI makes of them: values, gradients, files."""

import pytest
import torch
from torch import nn

from tests.fixtures.lumina2 import ATTENTION, KEY_MAP, TEXT, make_lumina, predict
from tests.fixtures.strong_states import strengthen
from tests.fixtures.textbook import relative
from trainer_core.adapters import attach
from trainer_core.config import AdapterConfig
from trainer_core.errors import AdapterError
from trainer_core.offload.model_bytes import pack_blocks
from trainer_core.quantization.formats import FORMATS
from trainer_core.quantization.quantized_linear import QuantizedLinear

WHOLE = "layers.0.attention.qkv"
PARTS = tuple(f"layers.0.attn.to_{each}" for each in "qkv")
KINDS = {
    "lora": {"kind": "lora"},
    "loha": {"kind": "loha"},
    "lokr": {"kind": "lokr", "factor": 8},
    "oft": {"kind": "oft"},
    "lokr dora": {"kind": "lokr", "factor": 8, "dora": True},
    "lora dora output": {"kind": "lora", "dora": True, "dora_axis": "output"},
}


@pytest.fixture
def transformer():
    return make_lumina()


def wholes(transformer):
    return KEY_MAP.whole_layers(dict(transformer.named_modules()))


def adapted(transformer, kind="lokr", **options):
    settings = {"rank": 4, "alpha": 3.0, "targets": list(ATTENTION), **KINDS[kind], **options}
    adapter = attach(transformer, AdapterConfig(**settings), whole=wholes(transformer))
    strengthen(transformer, adapter, 0.2)
    return adapter


def velocity(transformer):
    generator = torch.Generator().manual_seed(3)
    noisy = torch.randn(2, 16, 8, 8, generator=generator)
    text = torch.randn(2, 5, TEXT, generator=generator)
    return predict(transformer, noisy, torch.tensor([0.3, 0.8]), text)


@pytest.mark.parametrize("kind", KINDS)
def test_the_parts_compute_with_the_rows_of_one_difference(kind, transformer):
    """Against the base with the difference in its weights, and gradients by finite differences."""
    weights = {path: transformer.get_submodule(path).weight.clone() for path in PARTS}
    adapter = adapted(transformer, kind).eval()
    found = velocity(transformer)
    whole = adapter.delta_weight(WHOLE)
    assert len(whole) == sum(map(len, weights.values()))
    changed = [adapter.delta_weight(name) for name in adapter.names]
    assert all(bool(each.any()) for each in changed)
    adapter.merge()
    rows = whole.split([len(each) for each in weights.values()])
    for (path, before), difference in zip(weights.items(), rows, strict=True):
        own = transformer.get_submodule(path).weight
        assert torch.allclose(own, before + difference, atol=1e-6)
    assert relative(velocity(transformer), found) < 1e-5
    adapter.unmerge()
    adapter.detach()
    for path, before in weights.items():
        layer = transformer.get_submodule(path)
        assert type(layer) is nn.Linear
        assert torch.equal(layer.weight, before)
    assert relative(velocity(transformer), found) > 0.01


@pytest.mark.parametrize("checkpointing", [False, True])
def test_gradients_are_those_of_separate_weights(checkpointing, transformer):
    adapter = adapted(transformer, "lokr").train()
    if checkpointing:
        transformer.train().enable_gradient_checkpointing()
    parameters = adapter.parameters()
    found = torch.autograd.grad(velocity(transformer).square().sum(), parameters)
    # One layer's factors by hand: through the difference that they make of the merged weights.
    layer, step = adapter.layers[WHOLE], 1e-2
    factor = layer.factors()["lokr_w1"]
    at = next(i for i, each in enumerate(parameters) if each is factor)
    transformer.eval()
    direction = torch.randn(factor.shape, generator=torch.Generator().manual_seed(1))
    values = []
    with torch.no_grad():
        for sign in (1, -1):
            factor += sign * step * direction
            values.append(velocity(transformer).double().square().sum())
            factor -= sign * step * direction
    slope = (values[0] - values[1]) / (2 * step)
    assert relative((found[at] * direction).sum().double(), slope) < 1e-2
    assert all(bool(each.any()) for each in found)


def test_parts_are_computed_once_for_an_input(transformer):
    adapter = adapted(transformer)
    calls = []
    adapter.layers[WHOLE].register_forward_hook(lambda *_: calls.append(1))
    with torch.no_grad():
        velocity(transformer)
    assert len(calls) == 1
    x, other = torch.randn(2, 1, 3, 96)
    query, key = (transformer.get_submodule(path) for path in PARTS[:2])
    calls.clear()
    assert torch.equal(query(x), query(x))  # not asked for together: computed again
    assert torch.equal(key(other), key(other.clone()))
    with torch.no_grad():
        adapter.layers[WHOLE].factors()["lokr_w1"].mul_(2)
    value = key(x)
    query(x)
    assert torch.equal(value, key(x.clone()))
    assert len(calls) == 6


def test_parts_are_chosen_together_or_not_at_all(transformer):
    config = AdapterConfig(targets=[r"layers\.0\.attn\.to_q"])
    with pytest.raises(AdapterError) as error:
        attach(transformer, config, whole=wholes(transformer))
    assert PARTS[1] in error.value.found
    assert "adapter.exclude" in error.value.remedy
    config = AdapterConfig(targets=list(ATTENTION), exclude=[r".*\.to_[qkv]"])
    adapter = attach(transformer, config, whole=wholes(transformer))
    assert all(name.endswith("to_out.0") for name in adapter.names)


@pytest.mark.parametrize("kind", ["lokr", "lokr dora"])
def test_packed_bases_work(kind, transformer):
    pack_blocks(transformer, ("layers",), FORMATS["int8"])
    before = velocity(transformer)
    adapter = adapted(transformer, kind).train()
    output = velocity(transformer)
    found = torch.autograd.grad(output.square().sum(), adapter.parameters())
    assert relative(output, before) > 0.01
    assert all(bool(each.isfinite().all()) and bool(each.any()) for each in found)
    with pytest.raises(AdapterError, match="to merge into"):
        adapter.merge()
    adapter.strength = 0.0
    assert relative(velocity(transformer), before) < 1e-6
    adapter.detach()
    assert isinstance(transformer.get_submodule(PARTS[0]), QuantizedLinear)
    assert torch.equal(velocity(transformer), before)
