"""The fused form against the textbook, the plain form, and by what it keeps and writes."""

import pytest
import torch
from fixtures.textbook import CASES, make_plan, random_factors, relative, textbook_delta
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from benchmarks.measuring.counters import count, saved_bytes
from trainer_core.adapters import attach
from trainer_core.adapters.kernels.fused import fuse
from trainer_core.adapters.kinds.loha import prefers_khatri_rao
from trainer_core.adapters.kinds.registry import KINDS
from trainer_core.config import AdapterConfig

TOLERANCE = 1e-12
FUSED = {name: fuse(kind.kernel) for name, kind in KINDS.items()}


def compare(plan, batch, seed, bias=True):
    kind = KINDS[plan.config.kind]
    factors = random_factors(plan, seed)
    generator = torch.Generator().manual_seed(seed + 1)

    def draw(*shape):
        return torch.randn(*shape, generator=generator, dtype=torch.float64)

    x = draw(*batch, plan.inputs).requires_grad_(True)
    weight, g = draw(plan.outputs, plan.inputs), draw(*batch, plan.outputs)
    offset = draw(plan.outputs) if bias else None
    delta = textbook_delta(kind.name, factors, plan.alpha, plan.rank)
    wanted = torch.einsum("...i,oi->...o", x, weight + delta)
    wanted = wanted if offset is None else wanted + offset
    scale = kind.scale(factors, plan.alpha, plan.rank)
    operands = kind.kernel.operands(factors)
    found = FUSED[kind.name].apply(x, None, weight, offset, scale, *[None] * 4, *operands)
    assert relative(found, wanted) < TOLERANCE
    leaves = [x, *factors.values()]
    expected = torch.autograd.grad(wanted, leaves, g)
    for value, reference in zip(torch.autograd.grad(found, leaves, g), expected, strict=True):
        assert value.shape == reference.shape
        assert relative(value, reference) < TOLERANCE


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize(("kind", "inputs", "outputs", "rank", "options"), CASES)
def test_output_and_gradients_equal_the_textbook(kind, inputs, outputs, rank, options, bias):
    compare(make_plan(kind, inputs, outputs, rank, 0.7, **options), (3, 5), 1, bias)


@settings(max_examples=60, deadline=None)
@given(
    kind=st.sampled_from(["lora", "loha", "lokr"]),
    inputs=st.integers(1, 48),
    outputs=st.integers(1, 48),
    rank=st.integers(1, 6),
    alpha=st.floats(0.1, 10.0),
    factor=st.sampled_from([-1, 2, 3, 5, 8]),
    flags=st.tuples(st.booleans(), st.booleans()),
    batch=st.sampled_from([(), (1,), (4,), (2, 3), (2, 1, 3), (0, 4)]),
    seed=st.integers(0, 10**6),
)
def test_any_shape_equals_the_textbook(
    kind, inputs, outputs, rank, alpha, factor, flags, batch, seed
):
    rank = rank if kind == "lokr" else min(rank, inputs, outputs)
    options = {"factor": factor, "full_matrix": flags[0], "decompose_both": flags[1]}
    compare(make_plan(kind, inputs, outputs, rank, alpha, **options), batch, seed)


def test_a_loha_of_many_parts_equals_the_textbook():
    """Its delta is made in parts of the layer's rows; this one takes three."""
    compare(make_plan("loha", 1024, 2500, 40), (6,), 3)


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


ROWS = 1024
WIDTH = 3072
COUNTED = {
    # options: saved / x, written / frozen, matmul FLOPs / frozen; 3072 -> 3072, bf16, 1024 rows
    "lora": ({"kind": "lora", "rank": 16}, (1.01, 2.2, 1.02)),
    # The sums of products below count for more than batches of matrices, which copied all inside.
    "loha": ({"kind": "loha", "rank": 16}, (1.09, 3.65, 1.26)),
    # The small factors of a lokr are saved in bf16: casting them again costs three operations.
    "lokr low-rank, factor 8": ({"kind": "lokr", "rank": 16, "factor": 8}, (1.005, 2.2, 1.02)),
    "lokr low-rank, balanced": ({"kind": "lokr", "factor": -1, "rank": 16}, (1.005, 3.1, 1.03)),
    "lokr full, factor 8": (
        {"kind": "lokr", "factor": 8, "full_matrix": True},
        (1.0, 3.7, 1.20),
    ),
    "dora, output": (
        {"kind": "lora", "rank": 16, "dora": True, "dora_axis": "output"},
        (2.01, 4.3, 1.03),
    ),
    "dora, input": (
        {"kind": "lora", "rank": 16, "dora": True, "dora_axis": "input"},
        (2.01, 4.3, 1.03),
    ),
}


def any_gradient():
    return torch.empty(ROWS, WIDTH, dtype=torch.bfloat16)


def adapted_linear(options):
    module = nn.Sequential(nn.Linear(WIDTH, WIDTH).to(torch.bfloat16).requires_grad_(False))
    adapter = attach(module, AdapterConfig(**options))
    with torch.no_grad():
        for parameter in adapter.parameters():
            parameter += 0.01
    return module, adapter


@pytest.fixture(scope="module")
def frozen():
    linear = nn.Linear(WIDTH, WIDTH).to(torch.bfloat16).requires_grad_(False)
    x = torch.randn(ROWS, WIDTH).to(torch.bfloat16).requires_grad_(True)
    return count(lambda: torch.autograd.grad(linear(x), [x], any_gradient()))


@pytest.mark.parametrize("name", COUNTED)
def test_little_is_kept_written_and_multiplied(name, frozen):
    options, (saved_limit, written_limit, flops_limit) = COUNTED[name]
    module, adapter = adapted_linear(options)
    x = torch.randn(ROWS, WIDTH).to(torch.bfloat16).requires_grad_(True)
    leaves = [x, *adapter.parameters()]
    with saved_bytes(module.parameters()) as saved:
        module(x)
    with torch.no_grad():
        for parameter in adapter.parameters():
            # As an optimizer does: what depends on the factors alone is made again.
            parameter += 0.01
    done = count(lambda: torch.autograd.grad(module(x), leaves, any_gradient()))
    assert saved.bytes / (x.numel() * x.element_size()) <= saved_limit
    assert done.written / frozen.written <= written_limit
    assert done.flops / frozen.flops <= flops_limit


def test_the_counters_see_what_the_plain_form_keeps_and_writes(frozen):
    options, limits = COUNTED["lokr full, factor 8"]
    module, adapter = adapted_linear(options)
    # A hook asks for the base to be called, which only the plain form does.
    module[0].base_layer.register_forward_hook(lambda *_: None)
    x = torch.randn(ROWS, WIDTH).to(torch.bfloat16).requires_grad_(True)
    with saved_bytes(module.parameters()) as saved:
        module(x)
    leaves = [x, *adapter.parameters()]
    done = count(lambda: torch.autograd.grad(module(x), leaves, any_gradient()))
    assert saved.bytes / (x.numel() * x.element_size()) > 1.5 * limits[0]
    assert done.written / frozen.written > 1.3 * limits[1]


ROUNDED = [
    *({**options, "rank": 8} for options, _ in COUNTED.values()),
    {"kind": "loha", "rank": 4},
    {"kind": "loha", "rank": 4, "exact_delta": True},
]


def test_both_forms_of_loha_are_among_those_whose_rounding_is_measured():
    ranks = {options["rank"] for options in ROUNDED if options["kind"] == "loha"}
    assert {prefers_khatri_rao(rank, 384, 256) for rank in ranks} == {True, False}


@pytest.mark.parametrize("options", ROUNDED)
def test_bf16_is_no_further_from_the_truth_than_the_plain_form(options):
    torch.manual_seed(0)
    errors = {}
    for form in ("fused", "plain", "truth"):
        dtype = torch.float64 if form == "truth" else torch.bfloat16
        torch.manual_seed(1)
        base = nn.Linear(256, 384).to(torch.bfloat16)
        module = nn.Sequential(base.to(dtype))
        adapter = attach(module, AdapterConfig(**options))
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
        assert wrong <= 1.1 * relative(plain.double(), truth), index


def test_loha_compiles_in_bf16_to_the_bits_that_it_computes():
    """Its products of float32 factors are written as bf16."""
    torch.manual_seed(0)
    module = nn.Sequential(nn.Linear(48, 64)).to(torch.bfloat16)
    adapter = attach(module, AdapterConfig(kind="loha", rank=2))
    with torch.no_grad():
        for parameter in adapter.parameters():
            parameter += 0.1 * torch.randn_like(parameter)
    x = torch.randn(5, 48).to(torch.bfloat16).requires_grad_(True)
    found = []
    torch.compiler.reset()
    for run in (module, torch.compile(module, backend="aot_eager", fullgraph=True)):
        y = run(x)
        found.append([y, *torch.autograd.grad(y.sum(), [x, *adapter.parameters()])])
    assert all(torch.equal(*pair) for pair in zip(*found, strict=True))


@pytest.mark.parametrize("name", ["weight", "bias"])
def test_what_is_thawed_of_the_base_by_hand_gets_its_gradient(name):
    module = nn.Sequential(nn.Linear(8, 8))
    attach(module, AdapterConfig(kind="lora", rank=2))
    thawed = getattr(module[0].base_layer, name).requires_grad_(True)
    module(torch.ones(3, 8)).sum().backward()
    assert torch.equal(thawed.grad, torch.full_like(thawed, 3.0))


@pytest.mark.parametrize(("kind", "dora"), [("lora", True), ("loha", False), ("lokr", True)])
def test_it_compiles_without_a_graph_break(kind, dora):
    torch.manual_seed(0)
    module = nn.Sequential(nn.Linear(24, 16), nn.GELU(), nn.Linear(16, 8))
    adapter = attach(module, AdapterConfig(kind=kind, rank=2, dora=dora))
    with torch.no_grad():
        for parameter in adapter.parameters():
            parameter += 0.1 * torch.randn_like(parameter)
    x = torch.randn(5, 24, requires_grad=True)
    leaves = [x, *adapter.parameters()]
    wanted = torch.autograd.grad(module(x).square().sum(), leaves)
    torch.compiler.reset()
    compiled = torch.compile(module, backend="aot_eager", fullgraph=True)
    found = torch.autograd.grad(compiled(x).square().sum(), leaves)
    for value, reference in zip(found, wanted, strict=True):
        assert relative(value, reference) < 1e-5


def test_a_hook_on_the_base_is_still_called():
    module = nn.Sequential(nn.Linear(8, 8))
    attach(module, AdapterConfig(kind="lora", rank=2))
    calls = []
    module[0].base_layer.register_forward_hook(lambda *_: calls.append(1))
    module(torch.randn(2, 8))
    assert calls == [1]


@pytest.mark.parametrize("kind", ["lora", "loha", "lokr"])
def test_autocast_computes_in_its_precision(kind):
    torch.manual_seed(0)
    module = nn.Sequential(nn.Linear(32, 32))
    adapter = attach(module, AdapterConfig(kind=kind, rank=4))
    with torch.no_grad():
        for parameter in adapter.parameters():
            parameter += 0.1 * torch.randn_like(parameter)
    x = torch.randn(6, 32)
    exact = module(x)
    with torch.autocast("cpu", torch.bfloat16):
        rounded = module(x)
    assert rounded.dtype == torch.bfloat16
    assert 0 < relative(rounded.float(), exact) < 2e-2
