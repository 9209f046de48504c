"""How the fused form rounds, and what it leaves to others.

`test_equations` has its numbers, `tests/unit/benchmarks/test_records.py` what it keeps and writes.
"""

import pytest
import torch
from fixtures.textbook import make_plan, random_factors, relative
from torch import nn

from trainer_core.adapters import attach
from trainer_core.adapters.kernels.fused_linear import make_fused_function
from trainer_core.adapters.kinds.registry import KINDS
from trainer_core.config import AdapterConfig

TOLERANCE = 1e-12
FUSED = {name: make_fused_function(kind.kernel) for name, kind in KINDS.items()}


@pytest.mark.parametrize("kind", ["lora", "loha", "lokr"])
def test_strided_input_and_gradient(kind):
    plan = make_plan(kind, 12, 20, 2)
    factors = random_factors(plan)
    wide = torch.randn(5, 24, dtype=torch.float64, requires_grad=True)
    weight = torch.randn(20, 12, dtype=torch.float64)
    kernel = KINDS[kind].kernel
    x = wide[:, ::2]
    operands = kernel.operands(factors)
    y = FUSED[kind].apply(x, None, weight, None, 1.0, *[None] * 4, *operands)
    wanted = x @ (weight + KINDS[kind].delta(factors, 1.0)).T
    leaves = [wide, *factors.values()]
    # The gradient of a sum is one number, expanded.
    expected = torch.autograd.grad(wanted.sum(), leaves)
    for value, reference in zip(torch.autograd.grad(y.sum(), leaves), expected, strict=True):
        assert relative(value, reference) < TOLERANCE


ROUNDED = [
    {"kind": "lora"},
    {"kind": "lora", "dora": True},
    {"kind": "lora", "dora": True, "dora_axis": "output"},
    {"kind": "loha"},
    {"kind": "lokr", "factor": 8},
    {"kind": "lokr", "factor": -1},
    {"kind": "lokr", "factor": 8, "full_matrix": True},
    {"kind": "loha", "rank": 4},
    {"kind": "loha", "rank": 4, "exact_delta": True},
]


@pytest.mark.parametrize("options", ROUNDED)
def test_bf16_is_no_further_from_the_truth_than_the_plain_form(options):
    torch.manual_seed(0)
    errors = {}
    for form in ("fused", "plain", "truth"):
        dtype = torch.float64 if form == "truth" else torch.bfloat16
        torch.manual_seed(1)
        base = nn.Linear(256, 384).to(torch.bfloat16)
        module = nn.Sequential(base.to(dtype))
        adapter = attach(module, AdapterConfig(**{"rank": 8, **options}))
        with torch.no_grad():
            for parameter in adapter.parameters():
                noise = torch.randn(parameter.shape).to(torch.float32)
                parameter += 0.05 * noise.to(parameter.dtype)
        if form == "plain":
            module[0].base_layer.register_forward_hook(lambda *_: None)
        x = torch.randn(200, 256).to(torch.bfloat16).to(dtype).requires_grad_(True)
        g = torch.randn(200, 384).to(torch.bfloat16).to(dtype)
        y = module(x)
        errors[form] = [y, *torch.autograd.grad(y, [x, *adapter.parameters()], g)]
    triples = zip(errors["fused"], errors["plain"], errors["truth"], strict=True)
    for index, (fused, plain, truth) in enumerate(triples):
        wrong = relative(fused.double(), truth)
        assert wrong <= 5e-3, index
        # The order of a sum in bf16 is the processor's.
        assert wrong <= 1.5 * relative(plain.double(), truth), index


@pytest.mark.parametrize("name", ["weight", "bias"])
def test_what_is_thawed_of_the_base_by_hand_gets_its_gradient(name):
    module = nn.Sequential(nn.Linear(8, 8))
    attach(module, AdapterConfig(kind="lora", rank=2))
    thawed = getattr(module[0].base_layer, name).requires_grad_(True)
    module(torch.ones(3, 8)).sum().backward()
    assert torch.equal(thawed.grad, torch.full_like(thawed, 3.0))
