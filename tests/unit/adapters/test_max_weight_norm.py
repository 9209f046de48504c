"""The limit of a layer's norm, against the whole delta in float64."""

import pytest
import torch
from fixtures.tables import table
from fixtures.textbook import CASES, make_plan, random_factors, textbook_delta
from torch import nn

from trainer_core.adapters import attach
from trainer_core.adapters.dora_magnitude import DORA_SCALE
from trainer_core.adapters.kinds.registry import KINDS
from trainer_core.adapters.max_weight_norm import (
    WeightNormLimit,
    stacked_delta_norms,
    weight_norm_tensors,
)
from trainer_core.config import AdapterConfig


@pytest.mark.parametrize(("kind", "inputs", "outputs", "rank", "options"), CASES)
def test_norms_without_a_delta_are_those_of_the_textbooks(kind, inputs, outputs, rank, options):
    plan = make_plan(kind, inputs, outputs, rank, **options)
    layers = [
        {name: each.detach() for name, each in random_factors(plan, seed).items()}
        for seed in range(4)
    ]
    stacked = {name: torch.stack([each[name] for each in layers]) for name in layers[0]}
    found = stacked_delta_norms(KINDS[kind], stacked)
    expected = [torch.linalg.vector_norm(textbook_delta(kind, each, rank, rank)) for each in layers]
    torch.testing.assert_close(found, torch.stack(expected), rtol=1e-10, atol=1e-10)


OPTIONS = table(__file__, "limited")
SIZES = [(12, 24), (24, 12), (12, 24), (12, 24), (24, 24)]


def make_layers(options, spread=1.0):
    """Layers of some sizes whose deltas are of very different norms; the last weight is zero."""
    torch.manual_seed(0)
    module = nn.ModuleDict({f"l{n}": nn.Linear(*size) for n, size in enumerate(SIZES)})
    with torch.no_grad():
        module["l4"].weight.zero_()
    adapter = attach(module, AdapterConfig(**options))
    generator = torch.Generator().manual_seed(3)
    with torch.no_grad():
        for name, each in adapter.named_parameters():
            size = 0.02 * spread * 4.0 ** int(name[1])
            if not name.endswith(DORA_SCALE):
                each.copy_(torch.randn(each.shape, generator=generator) * size**0.5)
    return module, adapter


def whole_delta(layer):
    """At strength 1, before any magnitude, in float64, by the textbook."""
    factors = {n: f.detach().double() for n, f in layer.factors().items() if n != DORA_SCALE}
    kind = layer.kind.name
    return textbook_delta(kind, factors, 1.0, 1.0) * (
        1.0 if {"lokr_w1", "lokr_w2"} <= factors.keys() else layer.scaling["default"]
    )


@pytest.mark.parametrize("name", OPTIONS)
def test_layers_above_the_limit_are_scaled_to_it_and_others_keep_their_bits(name):
    _, adapter = make_layers(OPTIONS[name])
    norms = weight_norm_tensors(adapter)
    deltas = {n: whole_delta(layer) for n, layer in adapter.layers.items()}
    shares = {n: float(deltas[n].norm() / norms[n]) for n in deltas if n != "l4"}
    ordered = sorted(shares.values())
    limit = (ordered[1] * ordered[2]) ** 0.5
    before = {n: each.detach().clone() for n, each in adapter.named_parameters()}
    found = WeightNormLimit(adapter, limit, norms)
    found.apply()
    too_strong = {n for n, share in shares.items() if share > limit}
    assert int(found.scaled) == len(too_strong) == 2
    assert {n for n, times in zip(found.names, found.times, strict=True) if times} == too_strong
    for n, each in adapter.named_parameters():
        kept = n.split(".")[0] not in too_strong or n.endswith(DORA_SCALE)
        assert torch.equal(each, before[n]) == kept, n
    for n in too_strong:
        made = whole_delta(adapter.layers[n])
        assert float(made.norm() / norms[n]) == pytest.approx(limit, rel=1e-5)
        torch.testing.assert_close(made, deltas[n] * (limit / shares[n]), rtol=1e-4, atol=1e-8)
    # Scaled alike: their balance is as it was.
    for n in too_strong:
        own = adapter.layers[n].factors()
        ratios = {
            float((own[f].detach() / before[f"{n}.{f}"]).mean()) for f in own if f != DORA_SCALE
        }
        assert max(ratios) - min(ratios) < 1e-5
    assert found.most_often()[1:] == (1, 2)


def test_an_untrained_adapter_is_below_every_limit_and_a_rotation_has_none():
    torch.manual_seed(0)
    module = nn.Sequential(nn.Linear(8, 8))
    adapter = attach(module, AdapterConfig(kind="lora", rank=2))
    limit = WeightNormLimit(adapter, 1e-6, weight_norm_tensors(adapter))
    limit.apply()
    assert int(limit.scaled) == 0
    assert limit.most_often() is None
    adapter.detach()
    turned = attach(module, AdapterConfig(kind="oft", rank=4))
    with pytest.raises(ValueError, match="oft"):
        WeightNormLimit(turned, 1.0, weight_norm_tensors(turned))
