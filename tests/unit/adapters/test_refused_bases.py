"""Layers that cannot be adapted are refused by name before anything is changed."""

import pytest
import torch
from torch import nn

from trainer_core.adapters import attach
from trainer_core.config import AdapterConfig
from trainer_core.errors import AdapterError

OPTIONS = [
    {"kind": "lora", "rank": 2},
    {"kind": "lora", "rank": 2, "exact_delta": True},
    {"kind": "lora", "rank": 2, "dora": True},
    {"kind": "loha", "rank": 2},
    {"kind": "lokr", "factor": -1, "rank": 2},
]
each_option = pytest.mark.parametrize("options", OPTIONS, ids=str)


def refused(module, options, message, targets=None):
    parts = list(module.modules())
    with pytest.raises(AdapterError, match=message) as caught:
        attach(module, AdapterConfig(**options), targets)
    assert caught.value.expected
    assert caught.value.remedy
    assert parts == list(module.modules())


@each_option
def test_two_layers_with_one_weight(options):
    module = nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 8))
    module[1].weight = module[0].weight
    refused(module, options, "share one weight")
    # One of them is as bad: what is merged into it changes the other.
    refused(module, options, "1 and 0 share one weight", ["1"])
    module = nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 8))
    attach(module, AdapterConfig(**options))


@each_option
@pytest.mark.parametrize("dtype", [torch.int8, torch.int32, torch.bool])
def test_a_weight_of_integers(options, dtype):
    module = nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 8))
    weight = torch.zeros(8, 8, dtype=dtype)
    module[1].weight = nn.Parameter(weight, requires_grad=False)
    refused(module, options, rf"1 has a weight of {dtype} \(8, 8\)")
    attach(module, AdapterConfig(**options), ["0"])


@each_option
def test_inference_mode(options):
    module = nn.Sequential(nn.Linear(8, 8))
    with torch.inference_mode():
        refused(module, options, "inference mode")
        with torch.inference_mode(False):
            adapter = attach(module, AdapterConfig(**options))
    module(torch.ones(1, 8)).sum().backward()
    assert all(each.grad is not None for each in adapter.parameters())


@pytest.mark.parametrize("alpha", [1e39, 1e-50])
def test_an_alpha_that_files_cannot_hold(alpha):
    module = nn.Sequential(nn.Linear(8, 8))
    refused(module, {"kind": "lora", "rank": 2, "alpha": alpha}, "in float32")
