"""An adapter on a quantized layer computes what it computes on that layer's numbers."""

import pytest
import torch
from fixtures.combinations import each_once, pairwise
from fixtures.quantized_bases import (
    FORMATS,
    INPUTS,
    NO_LIBRARY,
    OUTPUTS,
    DenseCopies,
    make_dense,
    make_quantized,
    plain_linear,
)
from fixtures.small_module import DORA, OPTIONS, attached
from fixtures.textbook import relative
from torch import nn

from trainer_core.adapters import attach
from trainer_core.config import AdapterConfig
from trainer_core.errors import AdapterError

KINDS = [
    {"kind": "lora", "rank": 3},
    {"kind": "loha", "rank": 2},
    {"kind": "lokr", "factor": -1, "rank": 2},
]
each_format = pytest.mark.parametrize("name", FORMATS)


def make_input(dtype=torch.float32, seed=1):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(2, 5, INPUTS, generator=generator).to(dtype).requires_grad_(True)


def results(module, adapter, dtype=torch.float32, call=None):
    """Output and the gradients of the input and of every factor."""
    x = make_input(dtype)
    g = torch.randn(2, 5, OUTPUTS, generator=torch.Generator().manual_seed(3)).to(dtype)
    y = (call or module)(x)
    return [y, *torch.autograd.grad(y, [x, *adapter.parameters()], g)]


def assert_close(found, expected, tolerance):
    assert len(found) == len(expected)
    for value, reference in zip(found, expected, strict=True):
        assert value.dtype == reference.dtype
        assert relative(value.detach().float(), reference.detach().float()) < tolerance


def tolerance_of(name, options, dtype):
    if dtype == torch.bfloat16:
        return 2e-2
    # Row lengths are taken of the numbers in bf16 here, and in float16 of bitsandbytes' int8.
    halved = name in ("diffusers_fp8", "bnb_int8") and options.get("dora")
    return 5e-4 if halved else 1e-5


@pytest.mark.parametrize(
    ("name", "options", "dora", "dtype"),
    pairwise(FORMATS, OPTIONS, DORA, [torch.float32, torch.bfloat16]),
)
def test_forward_and_gradients_equal_those_on_its_numbers(name, options, dora, dtype):
    options = {**options, **dora}
    tolerance = tolerance_of(name, options, dtype)
    module, dense = make_quantized(name, dtype), make_dense(name, dtype)
    base = dense(make_input(dtype))
    found = results(module, attached(module, options), dtype)
    assert_close(found, results(dense, attached(dense, options), dtype), tolerance)
    assert relative(found[0].float(), base.float()) > 5 * tolerance, "a change too small to tell"


@each_format
def test_another_weight_is_told_apart(name):
    """The check above can fail: the weight before it was quantized gives other numbers."""
    options = {**KINDS[0], **DORA[2]}
    module, other = make_quantized(name), nn.Sequential(plain_linear()).requires_grad_(False)
    found = results(module, attached(module, options))
    with pytest.raises(AssertionError):
        assert_close(found, results(other, attached(other, options)), 5e-4)


def bits(tensor):
    """A tensor in a form that torch.equal compares."""
    if hasattr(tensor, "qdata"):
        return torch.cat([tensor.qdata.float().flatten(), tensor.scale.float().flatten()])
    return tensor.float()


@pytest.mark.parametrize(("name", "dora"), each_once(FORMATS, DORA))
def test_no_dense_copy_of_the_weight_is_kept(name, dora):
    module = make_quantized(name)
    with DenseCopies() as copies:
        adapter = attached(module, {**KINDS[0], **dora})
    assert copies.count() == 0, "after it was attached"
    with copies:
        y = module(make_input())
    assert copies.count() == 0, "between the forward and the backward pass"
    with copies:
        y.sum().backward()
    assert copies.made, "the weight is read in the backward pass"
    assert copies.count() == 0, "between two steps"
    adapter.detach()


def test_the_count_sees_a_dense_copy():
    module = make_quantized("ao_int8")
    with DenseCopies() as copies:
        y = module(make_input())
    assert copies.count() == 1, "torchao's own backward pass keeps the weight"
    del y
    assert copies.count() == 0


@pytest.mark.parametrize("name", FORMATS)
def test_merging_is_refused_and_changes_nothing(name):
    module = make_quantized(name)
    adapter = attached(module, KINDS[0])
    before = bits(module[0].get_base_layer().weight.detach()).clone()
    with pytest.raises(AdapterError, match=r"0 has a weight of (.|\n)*Load the base in bf16"):
        adapter.merge()
    with pytest.raises(AdapterError, match="0 has a weight of"):
        module[0].merge()
    assert not module[0].merged
    assert torch.equal(bits(module[0].get_base_layer().weight.detach()), before)


@pytest.mark.parametrize("dora", DORA[1:])
def test_the_norm_follows_an_optimizer_that_torch_does_not_count(dora):
    """Optimizers with 8-bit states write the parameters behind torch's back."""
    bnb = pytest.importorskip("bitsandbytes", reason=NO_LIBRARY)
    torch.manual_seed(0)
    module = nn.Sequential(nn.Linear(64, 96))
    adapter = attach(module, AdapterConfig(kind="lora", rank=64, **dora))
    optimizer = bnb.optim.AdamW8bit(adapter.parameters(), lr=0.1)
    versions = [parameter._version for parameter in adapter.parameters()]
    for _ in range(2):
        module(torch.randn(4, 64)).square().sum().backward()
        optimizer.step()
        optimizer.zero_grad()
    assert [parameter._version for parameter in adapter.parameters()] == versions
    base = module[0].get_base_layer().weight
    factors = {name.removeprefix("0."): value for name, value in adapter.named_parameters()}
    delta = factors["lora_up"] @ factors["lora_down"]
    expected = (base + delta).norm(dim=1 if dora["dora_axis"] == "output" else 0)
    with torch.no_grad():
        module(torch.randn(4, 64))
    assert relative(module[0].norm(), expected) < 1e-6
    assert relative(base.norm(dim=1 if dora["dora_axis"] == "output" else 0), expected) > 1e-2
