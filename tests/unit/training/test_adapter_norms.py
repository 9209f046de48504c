"""The adapter's size by block."""

import math

import pytest
import torch
from torch import nn

from trainer_core.adapters import attach
from trainer_core.config import AdapterConfig
from trainer_core.training.metrics.adapter_norms import REST, AdapterNorms


class Base(nn.Module):
    """Three blocks in two lists, and a layer beside them."""

    def __init__(self):
        super().__init__()
        self.blocks = nn.ModuleList(
            nn.ModuleDict({"one": nn.Linear(8, 8), "two": nn.Linear(8, 4)}) for _ in range(11)
        )
        self.single = nn.ModuleList([nn.Linear(8, 8)])
        self.last = nn.Linear(8, 8)


def adapted(size):
    torch.manual_seed(0)
    base = Base().requires_grad_(False)
    layers = {name: each for name, each in base.named_modules() if isinstance(each, nn.Linear)}
    adapter = attach(base, AdapterConfig(kind="lora", rank=2), layers)
    resize(adapter, size)
    return adapter


@torch.no_grad()
def resize(adapter, size):
    """Bring each layer's change to a share of its weight."""
    for name, layer in adapter.layers.items():
        for parameter in layer.factors().values():
            parameter.normal_()
        wanted = size * layer.base_weight.norm() / adapter.delta_weight(name).norm()
        layer.factors()["lora_up"].mul_(wanted)


def norms(adapter, warnings, every=1, steps=1000):
    return AdapterNorms(adapter, ("blocks", "single"), every, steps, warnings.append)


def test_layers_are_gathered_by_block_in_the_order_of_the_numbers():
    adapter = adapted(0.0)
    with torch.no_grad():
        for index, name in enumerate(adapter.names):
            for parameter in adapter.layers[name].factors().values():
                parameter.fill_(0.1 + index / 100)
    found = norms(adapter, []).measure(1)
    assert list(found) == [*(f"blocks.{n}" for n in range(11)), "single.0", REST]
    deltas = [adapter.delta_weight(f"blocks.10.{each}").double() for each in ("one", "two")]
    weights = [adapter.layers[f"blocks.10.{each}"].base_weight.double() for each in ("one", "two")]
    wanted = math.hypot(*(d.norm() for d in deltas)) / math.hypot(*(w.norm() for w in weights))
    assert found["blocks.10"] == pytest.approx(wanted, rel=1e-5)
    last = adapter.delta_weight("last").norm() / adapter.layers["last"].base_weight.norm()
    assert found[REST] == pytest.approx(float(last), rel=1e-5)


@pytest.mark.parametrize("angle", [0.45, 0.55])
def test_a_rotation_is_measured_by_its_angle(angle):
    base = Base().requires_grad_(False)
    layers = {f"blocks.{n}.one": block["one"] for n, block in enumerate(base.blocks)}
    adapter = attach(base, AdapterConfig(kind="oft", rank=2), layers)
    with torch.no_grad():
        for parameter in adapter.parameters():
            # Cayley's rotation of a number q turns by 2 atan(q); it is the difference of two.
            parameter[:, 1] = math.tan(angle / 2)
    found = norms(adapter, []).measure(1)
    assert found["blocks.3"] == pytest.approx(2 * math.sin(angle / 2), rel=1e-5)
