"""What an adapted convolution does besides its equation: detach, merge, states, refusals."""

import pytest
from fixtures.convolutions import Shape
from torch import nn

from trainer_core.adapters import attach
from trainer_core.config import AdapterConfig
from trainer_core.errors import AdapterError


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
