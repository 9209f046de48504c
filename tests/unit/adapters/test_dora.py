"""DoRA of every kind and axis against textbook torch in float64."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from trainer_core.adapters import attach
from trainer_core.adapters.attach_state import attach_state
from trainer_core.adapters.dora import DORA_SCALE
from trainer_core.config import AdapterConfig
from trainer_core.errors import AdapterError

AXES = ("input", "output")
OPTIONS = [
    {"kind": "lora", "rank": 3},
    {"kind": "loha", "rank": 2},
    {"kind": "lokr", "rank": 2, "factor": 4},
    {"kind": "lokr", "rank": 2, "factor": 4, "full_matrix": True},
    {"kind": "lokr", "rank": 1, "factor": 4, "decompose_both": True},
]


def make(options, axis, inputs=24, outputs=16, bias=True, dtype=torch.float64, seed=0, spread=0.3):
    """A Linear with an adapter whose every factor was moved away from its initialization."""
    generator = torch.Generator().manual_seed(seed)
    module = nn.Sequential(nn.Linear(inputs, outputs, bias=bias).to(torch.float64))
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.normal_(generator=generator)
    module.to(dtype)
    adapter = attach(module, AdapterConfig(dora=True, dora_axis=axis, **options), seed=seed)
    with torch.no_grad():
        for parameter in adapter.parameters():
            noise = torch.randn(parameter.shape, generator=generator, dtype=torch.float64)
            parameter += spread * noise.to(parameter.dtype)
    return module, adapter


def textbook(module, adapter, x, axis):
    """W' = m (W + D) / |W + D|, with the norm held constant; by definition."""
    layer = module[0]
    base = layer.get_base_layer()
    factors = layer.factors()
    plain = {name: value for name, value in factors.items() if name != DORA_SCALE}
    delta = layer.kind.delta(plain, layer.scaling["default"])
    total = base.weight + delta
    norm = total.detach().norm(dim=1 if axis == "output" else 0, keepdim=True)
    weight = factors[DORA_SCALE] * total / norm
    return nn.functional.linear(x, weight, base.bias), weight


def relative(found, wanted):
    found, wanted = found.detach(), wanted.detach()
    return float((found - wanted).norm() / wanted.norm().clamp(min=1e-300))


def compare(module, adapter, axis, batch=(3, 5), seed=1):
    generator = torch.Generator().manual_seed(seed)
    inputs, outputs = module[0].in_features, module[0].out_features
    x = torch.randn(*batch, inputs, generator=generator, dtype=torch.float64, requires_grad=True)
    g = torch.randn(*batch, outputs, generator=generator, dtype=torch.float64)
    leaves = [x, *adapter.parameters()]
    wanted, weight = textbook(module, adapter, x, axis)
    found = module(x)
    assert relative(found.detach(), wanted.detach()) < 1e-12
    expected = torch.autograd.grad(wanted, leaves, g)
    # Lengths make the output blind to the factors' size, so that a gradient may nearly cancel.
    smallest = 1e-3 * max(float(reference.norm()) for reference in expected)
    for value, reference in zip(torch.autograd.grad(found, leaves, g), expected, strict=True):
        assert value.shape == reference.shape
        assert float((value - reference).norm()) < 1e-12 * max(float(reference.norm()), smallest)
    delta = adapter.delta_weight(adapter.names[0])
    base = module[0].get_base_layer().weight
    assert relative(delta, (weight - base).detach()) < 1e-12


@pytest.mark.parametrize("axis", AXES)
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("options", OPTIONS)
def test_output_and_gradients_equal_the_textbook(options, bias, axis):
    module, adapter = make(options, axis, bias=bias)
    compare(module, adapter, axis)


@pytest.mark.parametrize("axis", AXES)
@pytest.mark.parametrize("options", [{"kind": "loha", "rank": 2}, {"kind": "loha", "rank": 30}])
def test_both_forms_of_loha_have_the_right_norm(options, axis):
    module, adapter = make(options, axis, inputs=96, outputs=128)
    compare(module, adapter, axis)


@settings(max_examples=25, deadline=None)
@given(
    options=st.sampled_from(OPTIONS),
    axis=st.sampled_from(AXES),
    inputs=st.integers(3, 40),
    outputs=st.integers(3, 40),
    alpha=st.floats(0.1, 4.0),
    batch=st.sampled_from([(), (1,), (2, 3)]),
    seed=st.integers(0, 10**6),
)
def test_any_shape_equals_the_textbook(options, axis, inputs, outputs, alpha, batch, seed):
    module, adapter = make({**options, "alpha": alpha}, axis, inputs, outputs, seed=seed)
    compare(module, adapter, axis, batch, seed)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("axis", AXES)
@pytest.mark.parametrize("options", OPTIONS)
def test_the_first_step_computes_the_base_to_the_last_bit(options, axis, dtype):
    torch.manual_seed(0)
    module = nn.Sequential(nn.Linear(24, 16).to(dtype))
    with torch.no_grad():
        module[0].weight[3] = 0.0
        module[0].weight[:, 5] = 0.0
    x = torch.randn(7, 24).to(dtype)
    before = module(x)
    adapter = attach(module, AdapterConfig(dora=True, dora_axis=axis, **options))
    assert torch.equal(module(x), before)
    adapter.detach()
    assert torch.equal(module(x), before)


@pytest.mark.parametrize("axis", AXES)
def test_a_row_without_direction_keeps_finite_gradients(axis):
    module, adapter = make(OPTIONS[0], axis)
    adapter.detach()
    with torch.no_grad():
        module[0].weight[3] = 0.0
        module[0].weight[:, 5] = 0.0
    adapter = attach(module, AdapterConfig(dora=True, dora_axis=axis, kind="lora", rank=3))
    module(torch.randn(4, 24, dtype=torch.float64)).square().sum().backward()
    assert all(torch.isfinite(parameter.grad).all() for parameter in adapter.parameters())
    lengths = next(p for name, p in adapter.named_parameters() if name.endswith(DORA_SCALE))
    assert int((lengths.grad == 0).sum()) == 1


@pytest.mark.parametrize("axis", AXES)
def test_strength_goes_from_the_base_to_the_adapter(axis):
    module, adapter = make(OPTIONS[0], axis)
    x = torch.randn(5, 24, dtype=torch.float64)
    whole = module(x)
    adapter.strength = 0.0
    base = module(x)
    adapter.strength = 0.25
    assert relative(module(x), base + 0.25 * (whole - base)) < 1e-12
    expected = module(x)
    adapter.merge()
    assert relative(module(x), expected) < 1e-12
    adapter.unmerge()
    assert torch.equal(module(x), expected)


@pytest.mark.parametrize("axis", AXES)
def test_merging_gives_what_the_adapter_computes(axis):
    module, adapter = make(OPTIONS[2], axis)
    x = torch.randn(5, 24, dtype=torch.float64)
    expected, delta = module(x), adapter.delta_weight("0")
    adapter.merge()
    assert relative(module(x), expected) < 1e-12
    assert torch.equal(adapter.delta_weight("0"), delta)


@pytest.mark.parametrize("axis", AXES)
@pytest.mark.parametrize("options", OPTIONS)
def test_a_state_is_put_back(options, axis):
    module, adapter = make(options, axis)
    x = torch.randn(5, 24, dtype=torch.float64)
    expected, state = module(x), adapter.state()
    adapter.detach()
    again = attach_state(module, state)
    assert again.config.dora_axis == axis
    assert torch.equal(module(x), expected)


def test_the_norm_is_computed_once_for_each_state_of_the_factors():
    module, adapter = make(OPTIONS[0], "input")
    layer = module[0]
    x = torch.randn(5, 24, dtype=torch.float64)
    module(x)
    first = layer.norm()
    module(x)
    assert layer.norm() is first
    with torch.no_grad():
        dict(adapter.named_parameters())["0.lora_up"].mul_(1.5)
    module(x)
    assert layer.norm() is not first
    assert not torch.equal(layer.norm(), first)
    second = layer.norm()
    layer.set_scale("default", 2.0)
    assert not torch.equal(layer.norm(), second)


def test_a_norm_made_under_inference_mode_serves_training():
    module, _ = make(OPTIONS[0], "output")
    with torch.inference_mode():
        module(torch.randn(2, 24, dtype=torch.float64))
    module(torch.randn(2, 24, dtype=torch.float64)).sum().backward()


@pytest.mark.parametrize("axis", AXES)
@pytest.mark.parametrize("options", OPTIONS)
def test_a_weight_stored_in_eight_bits_has_lengths_too(options, axis):
    """Diffusers' layerwise casting stores fp8 and casts around each forward."""
    torch.manual_seed(0)
    module = nn.Sequential(nn.Linear(24, 16).to(torch.float8_e4m3fn))
    weight = module[0].weight.to(torch.bfloat16)
    adapter = attach(module, AdapterConfig(dora=True, dora_axis=axis, **options))
    state = adapter.state().layers["0"].tensors[DORA_SCALE]
    expected = weight.float().norm(dim=1 if axis == "output" else 0)
    assert relative(state.flatten(), expected) < 1e-6


class Packed(nn.Linear):
    """Computes with its integers in a way of its own."""

    def forward(self, x):
        return nn.functional.linear(x, self.weight.to(x.dtype), self.bias)


def test_a_weight_that_nobody_can_read_is_refused():
    module = nn.Sequential(Packed(4, 4))
    module[0].weight = nn.Parameter(torch.zeros(4, 4, dtype=torch.int32), requires_grad=False)
    with pytest.raises(AdapterError, match=r"0 is a Packed with [^\0]*adapter\.dora to false"):
        attach(module, AdapterConfig(dora=True))
    attach(module, AdapterConfig())
    assert module(torch.ones(2, 4)).shape == (2, 4)


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_the_length_of_a_row_of_zeros_learns_once_the_row_has_a_direction(options, bias):
    module, _ = make(options, "output", bias=bias)
    with torch.no_grad():
        module[0].get_base_layer().weight[3] = 0.0
    plain = nn.Sequential(module[0].get_base_layer())
    adapter = attach(plain, AdapterConfig(dora=True, dora_axis="output", **options))
    with torch.no_grad():
        for name, parameter in adapter.named_parameters():
            if not name.endswith(DORA_SCALE):
                parameter += 0.3 * torch.ones_like(parameter).cumsum(0)
    lengths = plain[0].factors()[DORA_SCALE]
    assert float(lengths[3]) == 0.0
    x = torch.randn(5, 24, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    wanted, _ = textbook(plain, adapter, x, "output")
    expected = torch.autograd.grad(wanted.square().sum() + wanted.sum(), lengths)[0]
    y = plain(x)
    found = torch.autograd.grad(y.square().sum() + y.sum(), lengths)[0]
    assert abs(float(expected[3])) > 1e-3
    assert relative(found, expected) < 1e-10


@pytest.mark.parametrize("axis", AXES)
def test_a_skipped_adapter_leaves_the_base_alone_lengths_included(axis):
    module, adapter = make({"kind": "lora", "rank": 2, "module_dropout": 0.5}, axis)
    x = torch.randn(3, 24, dtype=torch.float64)
    adapter.eval()
    base, whole = module[0].get_base_layer()(x), module(x)
    adapter.train()
    torch.manual_seed(0)
    outputs = [module(x) for _ in range(20)]
    skipped = [y for y in outputs if torch.equal(y, base)]
    assert 0 < len(skipped) < 20
    assert all(torch.equal(y, base) or relative(y, whole) < 1e-12 for y in outputs)
    gradients = torch.autograd.grad(skipped[0].sum(), adapter.parameters())
    assert not any(each.any() for each in gradients)


@pytest.mark.parametrize("axis", AXES)
@pytest.mark.parametrize("kind", ["lora", "loha", "lokr"])
def test_lycoris_computes_the_same_with_our_factors(kind, axis):
    pytest.importorskip("lycoris", reason="lycoris_lora is not installed")
    from lycoris.modules.locon import LoConModule
    from lycoris.modules.loha import LohaModule
    from lycoris.modules.lokr import LokrModule

    options = {"kind": kind, "rank": 2, "alpha": 2.0, "factor": -1}
    module, adapter = make(options, axis, dtype=torch.float32)
    base = module[0].get_base_layer()
    lengths_on_rows = {"weight_decompose": True, "wd_on_out": axis == "output"}
    module_class = {"lora": LoConModule, "loha": LohaModule, "lokr": LokrModule}[kind]
    factor = {"factor": -1} if kind == "lokr" else {}
    lycoris = module_class("layer", base, lora_dim=2, alpha=2.0, **lengths_on_rows, **factor)
    own = dict(lycoris.named_parameters())
    with torch.no_grad():
        for name, tensor in adapter.state().layers["0"].tensors.items():
            own[f"{name}.weight" if name.startswith("lora_") else name].copy_(tensor)
    x = torch.randn(5, 24)
    expected = module(x)
    plain = base(x)
    lycoris.apply_to()
    assert relative(base(x), expected) < 1e-6
    assert relative(expected, plain) > 0.02


def test_peft_computes_the_same_with_our_lora():
    import peft

    module, adapter = make({"kind": "lora", "rank": 3}, "output", dtype=torch.float32)
    x = torch.randn(5, 24)
    expected, tensors = module(x), adapter.state().layers["0"].tensors
    adapter.detach()
    config = peft.LoraConfig(r=3, lora_alpha=3, target_modules=["0"], use_dora=True)
    theirs = peft.get_peft_model(module, config)
    layer = theirs.base_model.model[0]
    with torch.no_grad():
        layer.lora_A["default"].weight.copy_(tensors["lora_down"])
        layer.lora_B["default"].weight.copy_(tensors["lora_up"])
        layer.lora_magnitude_vector["default"].weight.copy_(tensors[DORA_SCALE].flatten())
    assert relative(theirs(x), expected) < 1e-6
