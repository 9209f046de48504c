"""How large an adapter is beside its weights, against the whole difference in float64."""

import math

import pytest
import torch
from torch import nn

from trainer_core.adapters import attach
from trainer_core.adapters.delta_norms import RelativeNorms, delta_norms, weight_norms
from trainer_core.config import AdapterConfig

OPTIONS = [
    {"kind": "lora", "rank": 3, "alpha": 1.5},
    {"kind": "lora", "rank": 3, "init": "pissa"},
    {"kind": "loha", "rank": 2},
    {"kind": "loha", "rank": 12},
    {"kind": "lokr", "rank": 2, "factor": 4},
    {"kind": "lokr", "rank": 2, "factor": 4, "full_matrix": True},
    {"kind": "lokr", "rank": 1, "factor": 4, "decompose_both": True},
]


def moved(module, seed=0, spread=0.1, **options):
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.normal_(generator=generator)
    adapter = attach(module, AdapterConfig.model_validate(options), {"0": module[0]}, seed=seed)
    with torch.no_grad():
        for parameter in adapter.parameters():
            noise = torch.randn(parameter.shape, generator=generator)
            parameter += spread * noise.to(parameter)
    return adapter


def linear():
    return nn.Sequential(nn.Linear(24, 16))


def window():
    return nn.Sequential(nn.Conv2d(8, 16, 3))


@pytest.mark.parametrize(
    ("options", "make"),
    [(each, linear) for each in OPTIONS]
    # A start from the weight's own parts is for a Linear.
    + [(each, window) for each in OPTIONS if "init" not in each],
)
def test_a_norm_is_that_of_the_whole_difference(options, make):
    adapter = moved(make(), **options)
    layer = adapter.layers["0"]
    wanted = adapter.delta_weight("0").double()
    if options.get("init"):
        state = adapter.state().layers["0"]
        factors = {name: each.double() for name, each in state.tensors.items()}
        wanted = layer.kind.delta(factors, state.alpha / state.rank)
    found = delta_norms(adapter)["0"]
    assert found.shape == ()
    assert float(found) == pytest.approx(float(wanted.norm()), rel=1e-5)
    weight = layer.base_weight.double().norm()
    assert weight_norms(adapter) == {"0": pytest.approx(float(weight), rel=1e-6)}
    share = RelativeNorms(adapter).tensors()["0"]
    assert float(share) == pytest.approx(float(wanted.norm() / weight), rel=1e-5)


def test_a_rotation_is_measured_by_how_far_it_is_from_none():
    adapter = moved(linear(), kind="oft", rank=4)
    layer = adapter.layers["0"]
    rotation = layer.kind.delta(dict(layer.factors()), 1.0)
    (share,) = RelativeNorms(adapter).tensors().values()
    assert float(share) == pytest.approx(float(rotation.detach().norm()) / math.sqrt(16), rel=1e-5)


def test_an_adapter_that_has_not_learned_has_no_norm_and_one_that_learns_is_measured_again():
    module = linear()
    adapter = attach(module, AdapterConfig(kind="lora", rank=2), seed=1)
    norms = RelativeNorms(adapter)
    assert norms.deltas() == {"0": 0.0}
    with torch.no_grad():
        for parameter in adapter.parameters():
            parameter.fill_(0.5)
    assert norms.deltas()["0"] == pytest.approx(float(adapter.delta_weight("0").norm()))
