"""Training on a base in fewer bits is training on the numbers that its format reads back."""

import pytest
import torch
import torch.nn.functional as F
from fixtures.combinations import each_once, pairwise, rarely
from torch import nn
from torch.utils.checkpoint import checkpoint

from trainer_core.adapters import attach
from trainer_core.adapters.kinds.registry import KINDS as REGISTERED
from trainer_core.config import AdapterConfig
from trainer_core.quantization.fp8 import Fp8
from trainer_core.quantization.quantized_linear import QuantizedLinear
from trainer_core.quantization.registry import FORMATS

WIDTH, INNER = 32, 64
STORED = {**FORMATS, "fp8 of a file": Fp8("none"), "fp8_scaled of a file": Fp8("tensor")}
KINDS = {
    "lora": {"kind": "lora", "rank": 3},
    "loha": {"kind": "loha", "rank": 2},
    "lokr": {"kind": "lokr", "rank": 2, "factor": 4},
    "lokr, full matrix": {"kind": "lokr", "factor": 4, "full_matrix": True},
    "lokr, both decomposed": {"kind": "lokr", "rank": 1, "factor": 4, "decompose_both": True},
    "oft": {"kind": "oft", "rank": 4},
    "pissa": {"kind": "lora", "rank": 3, "init": "pissa"},
}
DORA = {"plain": {}, "by input": {"dora_axis": "input"}, "by output": {"dora_axis": "output"}}
PRECISIONS = [torch.float32, torch.bfloat16]

_ADDING = [kind for kind in KINDS if kind not in {"oft", "pissa"}]
QUICK = [
    *each_once(_ADDING, DORA, STORED, PRECISIONS, [False, True]),
    ("oft", "plain", "nf4", torch.bfloat16, True),
    ("pissa", "plain", "int8", torch.float32, False),
]
EVERY_PAIR = [
    *pairwise(_ADDING, DORA, STORED, PRECISIONS, [False, True]),
    *pairwise(["oft", "pissa"], ["plain"], STORED, PRECISIONS, [False, True]),
]
CASES = [*QUICK, *rarely(EVERY_PAIR)]


class Block(nn.Module):
    """Two layers with a curve between them, computed again in the backward pass or not."""

    def __init__(self, layers, again):
        super().__init__()
        self.first, self.second = layers
        self.again = again

    def compute(self, x):
        return x + self.second(F.gelu(self.first(x)))

    def forward(self, x):
        return checkpoint(self.compute, x, use_reentrant=False) if self.again else self.compute(x)


def bases(name, dtype, again=False):
    """The same block twice: with layers in a format, and dense with the numbers read back."""
    generator = torch.Generator().manual_seed(0)
    stored, packed, dense = STORED[name], [], []
    for shape in ((INNER, WIDTH), (WIDTH, INNER)):
        weight = (torch.randn(shape, generator=generator) * 0.1).to(dtype)
        bias = torch.randn(shape[0], generator=generator).to(dtype)
        layer = QuantizedLinear(stored, shape, stored.pack(weight), bias, dtype)
        plain = nn.Linear(shape[1], shape[0], dtype=dtype)
        plain.weight.data, plain.bias.data = layer.dense(dtype), bias.clone()
        packed.append(layer)
        dense.append(plain)
    return [Block(each, again).requires_grad_(False) for each in (packed, dense)]


def trained(base, options, dtype):
    """Every loss, and every factor after three steps."""
    adapter = attach(base, AdapterConfig(**options)).train()
    optimizer = torch.optim.AdamW(adapter.parameters(), lr=0.05)
    generator = torch.Generator().manual_seed(1)
    seen = []
    for _ in range(3):
        x = torch.randn(2, 3, WIDTH, generator=generator).to(dtype).requires_grad_(True)
        loss = base(x).float().square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        seen += [loss.detach(), x.grad]
    return [*seen, *(each.detach().clone() for each in adapter.parameters())]


@pytest.mark.parametrize(("kind", "dora", "name", "dtype", "again"), CASES)
def test_training_equals_that_on_the_numbers_read_back(kind, dora, name, dtype, again):
    options = {**KINDS[kind], **DORA[dora], **({} if dora == "plain" else {"dora": True})}
    packed, dense = (trained(base, options, dtype) for base in bases(name, dtype, again))
    assert all(torch.equal(a, b) for a, b in zip(packed, dense, strict=True))
    assert len({float(loss) for loss in packed[:6:2]}) == 3, "nothing was learned"


def test_other_numbers_are_told_apart():
    packed, dense = bases("nf4", torch.float32)
    dense.first.weight.data[0, 0] += 1e-4
    found, expected = (trained(each, KINDS["lora"], torch.float32) for each in (packed, dense))
    assert not all(torch.equal(a, b) for a, b in zip(found, expected, strict=True))


def test_every_kind_is_in_the_table():
    assert {each["kind"] for each in KINDS.values()} == set(REGISTERED)
