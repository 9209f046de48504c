"""Which layers an adapter is put on."""

import pytest
import torch
from torch import nn

from tests.fixtures.tables import table
from trainer_core.adapters import attach
from trainer_core.config import AdapterConfig
from trainer_core.errors import AdapterError


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.to_q = nn.Linear(8, 8)
        self.to_k = nn.Linear(8, 8)
        self.ff = nn.Sequential(nn.Linear(8, 16), nn.GELU(), nn.Linear(16, 8))
        self.norm = nn.LayerNorm(8)

    def forward(self, x):
        return self.ff(self.to_q(x) + self.to_k(self.norm(x)))


class Padded(nn.Conv2d):
    def forward(self, x):
        return super().forward(nn.functional.pad(x, (1, 0, 1, 0)))


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.blocks = nn.ModuleList(Block() for _ in range(12))
        self.patch = nn.Conv2d(3, 8, 2)
        self.padded = Padded(3, 8, 2)
        self.head = nn.Linear(8, 4)


PRESETS = {"attention": [r"blocks\.\d+\.to_[qk]"], "all_linear": [".*"], "broken": ["("]}


def names(targets=None, unused=(), **options):
    configured = AdapterConfig(kind="lora", rank=2, **options)
    return attach(Model(), configured, targets, presets=PRESETS, unused=unused)


def test_include_wins_over_exclude():
    found = names("attention", include=["head", r"blocks\.3\.to_q"], exclude=[r".*to_q"]).names
    assert found == tuple(
        sorted([f"blocks.{i}.to_k" for i in range(12)] + ["blocks.3.to_q", "head"])
    )


def test_unused_layers_leave_presets_but_not_patterns_or_include():
    unused = [r"blocks\.11\..*"]
    adapter = names("attention", unused)
    assert not any(name.startswith("blocks.11") for name in adapter.names)
    assert adapter.excluded_unused == ("blocks.11.to_k", "blocks.11.to_q")
    named = names("attention", unused, include=[r"blocks\.11\.to_q"])
    assert "blocks.11.to_q" in named.names
    assert named.excluded_unused == ("blocks.11.to_k",)
    assert "blocks.11.to_q" in names([r".*to_q"], unused).names


def test_modules_can_be_passed_by_name():
    model = Model()
    adapter = attach(
        model,
        AdapterConfig(kind="lora", rank=2),
        {"query": model.blocks[0].to_q, "out": model.head, "again": model.head},
    )
    assert adapter.names == ("again", "query")
    assert adapter.matched_again == ("out",)
    with pytest.raises(AdapterError, match="'stranger'"):
        attach(Model(), AdapterConfig(kind="lora", rank=2), {"stranger": nn.Linear(8, 8)})


def test_a_layer_is_adapted_once_however_many_patterns_match():
    adapter = names([r".*to_q", r"blocks\.0\..*", r"blocks\.0\.to_q"])
    assert len(adapter.names) == 12 + 3
    assert adapter.matched_again == ("blocks.0.to_q",) * 2
    assert len(adapter.parameters()) == 2 * len(adapter.names)


def test_a_module_at_two_paths_is_adapted_once_and_at_both():
    module = nn.ModuleDict({"first": nn.Linear(4, 4)})
    module["second"] = module["first"]
    original = module["first"]
    adapter = attach(module, AdapterConfig(kind="lora", rank=2))
    assert adapter.names == ("first",)
    assert adapter.matched_again == ("first",)
    assert module["first"] is module["second"]
    assert module["first"] is not original
    with torch.no_grad():
        for parameter in adapter.parameters():
            parameter.normal_()
    x = torch.randn(2, 4)
    assert torch.equal(module["second"](x), module["first"](x))
    assert not torch.equal(module["second"](x), original(x))
    adapter.detach()
    assert module["first"] is original
    assert module["second"] is original


def test_rank_and_alpha_by_pattern():
    adapter = names(
        "attention",
        rank_pattern={r"blocks\.[0-4]\.to_q": 4, r".*\.to_q": 3},
        alpha_pattern={r"blocks\.0\..*": 1.0},
    )
    layers = adapter.state().layers
    assert [layers[f"blocks.{i}.to_q"].rank for i in (0, 4, 5)] == [4, 4, 3]
    assert layers["blocks.0.to_k"].rank == 2
    assert layers["blocks.0.to_q"].alpha == 1.0
    assert layers["blocks.5.to_q"].alpha == 3.0  # alpha unset follows the layer's own rank
    assert layers["blocks.5.to_q"].tensors["lora_down"].shape == (3, 8)


REFUSED = table(__file__, "refused_targets")


@pytest.mark.parametrize(("options", "message"), REFUSED)
def test_bad_targets_are_refused_by_setting(options, message):
    configured = AdapterConfig.model_construct(
        **{**AdapterConfig(kind="lora", rank=2, targets="attention").model_dump(), **options}
    )
    with pytest.raises(AdapterError, match=message):
        attach(Model(), configured, presets=PRESETS)


def test_an_attention_projection_that_is_never_called_is_not_adapted():
    module = nn.ModuleDict({"attention": nn.MultiheadAttention(8, 2), "head": nn.Linear(8, 8)})
    assert attach(module, AdapterConfig(kind="lora", rank=2)).names == ("head",)
