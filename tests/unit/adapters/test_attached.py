"""What a module computes with an attached adapter, and how the adapter trains."""

import pytest
import torch
from torch import nn

from tests.fixtures.small_module import config, each_kind, make_input, make_module, randomize
from trainer_core.adapters import attach
from trainer_core.config import AdapterConfig

DORA = [{}, {"dora": True}, {"dora": True, "dora_axis": "output"}]
STARTS = [
    *({"kind": kind, **dora} for kind in ("lora", "loha", "lokr") for dora in DORA),
    {"kind": "oft", "rank": 4},
    {"kind": "lokr", "factor": 4, "full_matrix": True, "dora": True},
    {"kind": "lokr", "factor": 4, "decompose_both": True, "rank": 1, "dora": True},
    *({"kind": "lora", "init": init} for init in ("gaussian", "orthogonal")),
    *({"kind": "lora", "init": init, **dora} for init in ("pissa", "olora") for dora in DORA[:2]),
    *({"kind": "lora", "init": init, "dropout": 0.5} for init in ("default", "pissa", "olora")),
]


@pytest.mark.parametrize("options", STARTS, ids=str)
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
def test_the_first_output_and_that_at_strength_zero_have_the_bits_of_the_base(options, dtype):
    module, x = make_module(dtype), make_input(dtype)
    with torch.no_grad():  # rows and columns without a length, which DoRA divides by
        module[0].weight[3] = 0.0
        module[0].weight[:, 5] = 0.0
    base = module(x)
    adapter = attach(module, AdapterConfig(**{"rank": 3, **options}))
    assert torch.equal(module(x), base)
    assert module(x).dtype == dtype
    randomize(adapter)
    assert not torch.equal(module(x), base)
    adapter.strength = 0.0
    assert torch.equal(module(x), base)


@each_kind
def test_only_the_factors_train_and_detach_gives_the_gradients_back(kind):
    module = make_module()
    module[0].bias.requires_grad_(False)
    before = {name: p.requires_grad for name, p in module.named_parameters()}
    adapter = attach(module, config(kind))
    trainable = {id(p) for p in module.parameters() if p.requires_grad}
    assert trainable == {id(p) for p in adapter.parameters()}
    adapter.detach()
    assert {name: p.requires_grad for name, p in module.named_parameters()} == before


@each_kind
def test_the_same_seed_gives_the_same_adapter_whatever_was_drawn_before(kind):
    first = attach(make_module(), config(kind), seed=4).state()
    torch.rand(3)
    second = attach(make_module(), config(kind), seed=4).state()
    third = attach(make_module(), config(kind), seed=5).state()
    for name, layer in first.layers.items():
        for factor, tensor in layer.tensors.items():
            assert torch.equal(tensor, second.layers[name].tensors[factor])
    assert any(
        not torch.equal(tensor, third.layers[name].tensors[factor])
        for name, layer in first.layers.items()
        for factor, tensor in layer.tensors.items()
    )


@each_kind
def test_dropout_drops_inputs_and_keeps_the_mean(kind):
    module = nn.Sequential(nn.Linear(12, 6)).double()
    adapter = attach(module, config(kind, dropout=0.25))
    randomize(adapter)
    x = torch.ones(40000, 12, dtype=torch.float64)
    base = module[0].get_base_layer()(x)
    delta = module(x) - base
    expected = adapter.delta_weight("0").sum(1)
    assert delta.std(0).min() > 0
    torch.testing.assert_close(delta.mean(0), expected, rtol=0.03, atol=0.02)


@each_kind
def test_rank_dropout_drops_whole_output_rows_and_scales_the_rest(kind):
    module = nn.Sequential(nn.Linear(12, 64, bias=False)).double()
    x = torch.randn(5, 12, dtype=torch.float64)
    base = module(x)
    adapter = attach(module, AdapterConfig(kind=kind, rank=2, rank_dropout=0.25))
    randomize(adapter)
    adapter.eval()
    whole = module(x) - base
    adapter.train()
    torch.manual_seed(0)
    ratio = (module(x) - base) / whole
    torch.testing.assert_close(ratio, ratio[:1].expand_as(ratio), rtol=1e-6, atol=1e-6)
    kept = ratio[0] > 0.5
    torch.testing.assert_close(ratio[0][kept], torch.full_like(ratio[0][kept], 1 / 0.75))
    assert 0 < (~kept).sum() < 40
    assert ratio[0][~kept].abs().max() < 1e-6


@each_kind
def test_module_dropout_skips_whole_layers_at_its_rate_with_gradients_of_zero(kind):
    module = nn.Sequential(nn.Linear(12, 6)).double()
    x = torch.randn(2, 12, dtype=torch.float64)
    base = module(x)
    adapter = attach(module, config(kind, module_dropout=0.3))
    randomize(adapter)
    torch.manual_seed(0)
    outputs = [module(x) for _ in range(400)]
    skipped = [y for y in outputs if torch.equal(y, base)]
    assert 80 < len(skipped) < 160
    gradients = torch.autograd.grad(skipped[0].sum(), adapter.parameters())
    assert not any(each.any() for each in gradients)
