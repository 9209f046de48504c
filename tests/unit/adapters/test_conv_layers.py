"""What an adapted convolution does besides its equation: detach, merge, states, refusals."""

import copy

import pytest
import torch
from fixtures.combinations import each_once
from fixtures.convolutions import WITH_DORA, Shape, adapted_conv, relative, textbook_weight
from torch import nn

from trainer_core.adapters import attach
from trainer_core.adapters.attach_state import attach_state
from trainer_core.config import AdapterConfig
from trainer_core.errors import AdapterError
from trainer_core.types import AdapterState, LayerState

OPTIONS = {**WITH_DORA, "loha dora": {**WITH_DORA["loha dora"], "dora_axis": "output"}}
LINEAR = Shape(())
SHAPES = {
    "1d": Shape((3,), padding=1),
    "2d": Shape((3, 3), stride=2, padding=1),
    "3d": Shape((2, 3, 2)),
}


def make_input(shape, seed=3, dtype=torch.float64):
    generator = torch.Generator().manual_seed(seed)
    size = (2, shape.inputs, *[7] * len(shape.kernel))
    return torch.randn(size, generator=generator, dtype=torch.float64).to(dtype)


@pytest.mark.parametrize(
    ("options", "shape"),
    [
        *each_once(OPTIONS, SHAPES.values()),
        *each_once(["lora dora", "loha dora", "lokr dora"], [LINEAR]),
    ],
)
def test_merge_unmerge_and_detach(options, shape):
    module, adapter = adapted_conv(shape, OPTIONS[options])
    x = make_input(shape)
    base = module[0].get_base_layer()
    weight = base.weight.detach().clone()
    expected, plain, wanted = module(x), base(x), textbook_weight(module, adapter)
    adapter.merge()
    assert relative(base.weight, wanted) < 1e-12
    assert relative(module(x), expected) < 1e-12
    assert relative(adapter.delta_weight("0"), base.weight - weight) < 1e-12
    adapter.unmerge()
    assert torch.equal(base.weight, weight)
    adapter.detach()
    assert module[0] is base
    assert torch.equal(module(x), plain)
    assert not base._forward_hooks
    assert base.weight.requires_grad


@pytest.mark.parametrize("options", OPTIONS)
def test_a_state_with_flat_windows_is_understood(options):
    """Some trainers file a convolution's factors as matrices."""
    module, adapter = adapted_conv(SHAPES["2d"], OPTIONS[options], dtype=torch.float32)
    state = adapter.state()
    flat = {
        name: tensor if name in ("lora_mid", "hada_t1", "hada_t2", "lokr_t2") else tensor.flatten(1)
        for name, tensor in state.layers["0"].tensors.items()
    }
    layer = LayerState(flat, state.layers["0"].alpha, state.layers["0"].rank)
    other = nn.Sequential(copy.deepcopy(module[0].get_base_layer()))
    attach_state(other, AdapterState(state.kind, {"0": layer}, {}))
    x = make_input(SHAPES["2d"], dtype=torch.float32)
    torch.testing.assert_close(other(x), module(x))


class Causal(nn.Conv1d):
    def forward(self, x):
        return super().forward(nn.functional.pad(x, (2, 0)))


REFUSED = [
    (Shape((3,), groups=2).build(), {"kind": "lokr", "factor": -1}, r"0 is a Conv1d with 2 groups"),
    (Causal(12, 8, 3), {"kind": "lora"}, r"0 is a Causal, which computes more than a convolution"),
    (Shape((1, 1)).build(), {"kind": "lora", "tucker": True}, r"no adapted layer has a window"),
    (
        Shape((3, 3)).build(),
        {"kind": "lora", "rank": 2, "tucker": True, "init": "gaussian"},
        r"adapter\.tucker is set and adapter\.init is gaussian",
    ),
    (Shape((3, 3)).build(), {"kind": "lora", "rank": 9}, r"rank 9 for 0, which is 8 x 108"),
    (
        Shape((3,), outputs=1).build(),
        {"kind": "lora", "rank": 1, "dora": True},
        r"adapter\.dora is set, and 0 has one output",
    ),
]


@pytest.mark.parametrize(("layer", "options", "message"), REFUSED)
def test_what_cannot_be_adapted_is_refused(layer, options, message):
    module = nn.Sequential(layer)
    with pytest.raises(AdapterError, match=message):
        attach(module, AdapterConfig(**{"rank": 2, **options}), ["0"])
    assert module[0] is layer
