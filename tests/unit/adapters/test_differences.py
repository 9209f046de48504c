"""Initialization from the base: factors are trained as differences, and all readers agree."""

import pytest
import torch
from fixtures.combinations import each_once
from fixtures.quantized_bases import FORMATS, INPUTS, make_dense, make_quantized
from fixtures.small_module import make_input, make_module, randomize
from fixtures.textbook import relative
from peft import LoraConfig, get_peft_model
from safetensors.torch import load_file
from torch import nn

from trainer_core.adapters import attach
from trainer_core.config import AdapterConfig
from trainer_core.errors import AdapterError

INITS = ("pissa", "olora")
SCALES = {
    "alpha is the rank": {},
    "alpha": {"alpha": 5.0},
    "rslora": {"alpha": 3.0, "rslora": True},
    "patterns": {"rank_pattern": {r"2\.0": 2}, "alpha_pattern": {r"2\.0": 6.0}},
}
each_init = pytest.mark.parametrize("init", INITS)


def attached(init, dtype=torch.float32, rank=3, **options):
    module = make_module(dtype)
    return module, attach(module, AdapterConfig(kind="lora", rank=rank, init=init, **options))


def adapted_by_peft(init, scale):
    options = SCALES[scale]
    config = LoraConfig(
        r=3,
        lora_alpha=options.get("alpha", 3),
        use_rslora=options.get("rslora", False),
        rank_pattern=options.get("rank_pattern", {}),
        alpha_pattern=options.get("alpha_pattern", {}),
        init_lora_weights=init,
        target_modules=["0", "2.0"],
    )
    return get_peft_model(make_module(), config)


def descend(module, parameters, steps):
    optimizer = torch.optim.SGD(parameters, lr=0.02)
    for step in range(steps):
        optimizer.zero_grad()
        x = make_input() * (1 + step)
        (module(x) - x[..., :8]).square().mean().backward()
        optimizer.step()


def gradients(module, adapter):
    (module(make_input()) - 1).square().mean().backward()
    return {name: parameter.grad for name, parameter in adapter.named_parameters()}


@pytest.mark.parametrize("scale", SCALES)
@each_init
def test_first_gradients_are_pefts(init, scale):
    module, adapter = attached(init, **SCALES[scale])
    found = gradients(module, adapter)
    theirs = adapted_by_peft(init, scale)
    (theirs(make_input()) - 1).square().mean().backward()
    for name in adapter.names:
        layer = theirs.base_model.model.get_submodule(name)
        down, up = layer.lora_A["default"].weight, layer.lora_B["default"].weight
        assert relative(adapter.named_tensors()[f"{name}.first_down"], down) < 1e-5
        assert relative(found[f"{name}.lora_down"], down.grad) < 1e-4
        assert relative(found[f"{name}.lora_up"], up.grad) < 1e-4
        assert float(down.grad.norm()) > 0


@pytest.mark.parametrize("scale", ["alpha", "rslora"])
@each_init
def test_after_steps_the_delta_is_what_peft_exports(init, scale, tmp_path):
    """PEFT writes a plain LoRA of twice the rank when it is told where the training began."""
    module, adapter = attached(init, **SCALES[scale])
    theirs = adapted_by_peft(init, scale)
    theirs.peft_config["default"].init_lora_weights = True
    theirs.save_pretrained(str(tmp_path / "first"))
    theirs.peft_config["default"].init_lora_weights = init
    descend(module, adapter.parameters(), 8)
    descend(theirs, [p for p in theirs.parameters() if p.requires_grad], 8)
    theirs.save_pretrained(
        str(tmp_path / "last"), path_initial_model_for_weight_conversion=str(tmp_path / "first")
    )
    written = load_file(str(tmp_path / "last" / "adapter_model.safetensors"))
    scaling = 5.0 / 3 if scale == "alpha" else 3.0 / 3**0.5
    for name in adapter.names:
        prefix = f"base_model.model.{name}.lora_"
        up, down = written[f"{prefix}B.weight"].double(), written[f"{prefix}A.weight"].double()
        assert up.shape[1] == 6
        expected = scaling * up @ down
        assert relative(adapter.delta_weight(name).double(), expected) < 1e-4
        assert float(expected.norm()) > 0.05
    torch.testing.assert_close(module(make_input()), theirs(make_input()), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("form", ["fused", "plain", "exact_delta"])
@each_init
def test_output_and_gradients_equal_the_textbook(init, form):
    module, adapter = attached(init, torch.float64, alpha=6.0, exact_delta=form == "exact_delta")
    randomize(adapter)
    layer, x = module[0], make_input(torch.float64).requires_grad_(True)
    if form == "plain":
        layer.base_layer.register_forward_hook(lambda *_: None)
    frozen, trained = layer.frozen_factors(), layer.factors()
    leaves = [x, trained["lora_down"], trained["lora_up"]]
    delta = (frozen["first_up"] + leaves[2]) @ (frozen["first_down"] + leaves[1])
    delta = 2.0 * (delta - frozen["first_up"] @ frozen["first_down"])
    base = layer.base_layer
    wanted = nn.functional.linear(x, base.weight + delta, base.bias)
    found = layer(x)
    assert relative(found, wanted) < 1e-12
    g = torch.randn(wanted.shape, dtype=torch.float64)
    expected = torch.autograd.grad(wanted, leaves, g)
    for value, reference in zip(torch.autograd.grad(found, leaves, g), expected, strict=True):
        assert relative(value, reference) < 1e-12
    assert relative(adapter.delta_weight("0"), delta) < 1e-12


def refused(module, match, **options):
    before = module[0]
    grads = [p.requires_grad for p in module.parameters()]
    with pytest.raises(AdapterError, match=match) as caught:
        attach(module, AdapterConfig(kind="lora", **options))
    assert caught.value.remedy
    assert module[0] is before
    assert [p.requires_grad for p in module.parameters()] == grads


@pytest.mark.parametrize("init", [*INITS, "eva"])
def test_convolutions_are_refused(init):
    module = nn.Sequential(nn.Conv2d(8, 8, 3))
    refused(module, "0 is a convolution", rank=2, init=init, targets=["0"])


def test_a_weight_of_low_rank_is_refused_by_pissa_alone():
    module = make_module()
    with torch.no_grad():
        module[2][0].weight.copy_(torch.ones(8, 20))
    refused(module, r"2\.0: a weight of rank 1 for 2 parts", rank=2, init="pissa")
    attach(module, AdapterConfig(kind="lora", rank=2, init="olora"))


@each_init
def test_a_weight_that_is_not_finite_is_refused_and_nothing_is_left_behind(init):
    module = make_module()
    with torch.no_grad():
        module[2][0].weight[0, 0] = float("nan")
    refused(module, r"2\.0: a weight with a value that is not finite", rank=2, init=init)


@pytest.mark.parametrize(("init", "name"), each_once(INITS, FORMATS))
def test_a_quantized_weight_is_decomposed_as_its_numbers_are(init, name):
    quantized, dense = make_quantized(name), make_dense(name)
    x = torch.randn(5, INPUTS, generator=torch.Generator().manual_seed(1))
    before, parts = quantized(x), []
    for module in (quantized, dense):
        adapter = attach(module, AdapterConfig(kind="lora", rank=8, init=init))
        tensors = adapter.named_tensors()
        parts.append(tensors["0.first_up"] @ tensors["0.first_down"])
        if module is quantized:
            assert torch.equal(module(x), before)
        randomize(adapter, size=0.1)
    assert relative(*parts) < 2e-2
    assert relative(quantized(x), dense(x)) < 2e-2
    assert relative(dense(x), before) > 0.1
