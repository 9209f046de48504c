"""A fused layer is its parts below each other, by the definition of the deltas."""

import pytest
import torch

from tests.fixtures.adapter_states import make_state
from tests.fixtures.textbook import textbook_delta
from trainer_core.adapter_files.factors.fuse_layers import (
    fuse_exactly,
    fused_layer,
    may_share_factors,
    shares_factors,
)
from trainer_core.adapter_files.names.key_map import Part
from trainer_core.errors import AdapterError
from trainer_core.types import LayerState

PARTS = (Part("q"), Part("k"), Part("v"), Part("mlp", 4))
SIZES = {"q": (10, 6), "k": (10, 6), "v": (10, 6), "mlp": (10, 24)}


def parts(kind, names=("q", "k", "v", "mlp"), ranks=(2, 1, 3, 2), alphas=(3.0, 1.0, 0.5, 2.0)):
    return {
        name: make_state(kind, rank, alpha, seed, {name: SIZES[name]}).layers[name]
        for seed, (name, rank, alpha) in enumerate(zip(names, ranks, alphas, strict=False))
    }


def delta(kind, layer):
    factors = {name: tensor.double() for name, tensor in layer.tensors.items()}
    return textbook_delta(kind, factors, layer.alpha, layer.rank)


def stacked(kind, layers):
    return torch.cat(
        [
            delta(kind, layers[name]) if name in layers else torch.zeros(rows, 10).double()
            for name, (_, rows) in SIZES.items()
        ]
    )


@pytest.mark.parametrize("alphas", [(2.0, 1.0, 3.0, 2.0), (3.0, 1.0, 0.5, 2.0)])
@pytest.mark.parametrize("names", [("q", "k", "v", "mlp"), ("v", "q"), ("mlp",)])
@pytest.mark.parametrize("kind", ["lora", "loha"])
def test_blocks_on_a_diagonal_are_the_parts(kind, names, alphas):
    layers = parts(kind, names, alphas=alphas)
    fused = fused_layer("linear1", kind, PARTS, layers)
    assert fused.rows == {name: rows for name, (_, rows) in SIZES.items()}
    whole = fuse_exactly(fused, layers)
    assert whole.rank == sum(layer.rank for layer in layers.values())
    torch.testing.assert_close(delta(kind, whole), stacked(kind, layers), rtol=1e-6, atol=1e-6)
    # It can fail: another value of one factor is noticed.
    whole.tensors[next(iter(whole.tensors))].mul_(1.01)
    assert (delta(kind, whole) - stacked(kind, layers)).norm() > 1e-3


@pytest.mark.parametrize("kind", ["lora", "loha", "lokr"])
def test_parts_of_one_fused_layer_become_it_again(kind):
    options = {"rank": 2, "alpha": 3.0} if kind != "lokr" else {"rank": 1, "alpha": 3.0}
    given = make_state(kind, sizes={"x": (10, 49)}, factor=7, **options).layers["x"]
    names = {"lora": ["lora_up"], "loha": ["hada_w1_a", "hada_w2_a"], "lokr": ["lokr_w1"]}[kind]
    # Of the LoKr every row of the first factor stands for seven rows of the delta.
    cuts = {"q": (0, 7), "k": (7, 14), "v": (14, 21), "mlp": (21, 49)}
    unit = 7 if kind == "lokr" else 1
    layers = {
        part: LayerState(
            {
                name: t[start // unit : stop // unit] if name in names else t.clone()
                for name, t in given.tensors.items()
            },
            given.alpha,
            given.rank,
        )
        for part, (start, stop) in cuts.items()
    }
    assert may_share_factors(kind, layers)
    assert shares_factors(kind, layers)
    fused = fused_layer("linear1", kind, PARTS, layers)
    whole = fuse_exactly(type(fused)("linear1", kind, fused.rows, 10, shared=True), layers)
    assert (whole.alpha, whole.rank) == (given.alpha, given.rank)
    assert all(torch.equal(whole.tensors[name], t) for name, t in given.tensors.items())
    other = next(name for name in given.tensors if name not in names)
    layers["k"].tensors[other][0, 0] += 1e-6
    assert not shares_factors(kind, layers)


def test_parts_of_a_lokr_with_factors_of_their_own_are_refused():
    layers = parts("lokr", ranks=(1, 1, 1, 1))
    fused = fused_layer("linear1", "lokr", PARTS, layers)
    with pytest.raises(AdapterError, match="lokr with factors of its own") as error:
        fuse_exactly(fused, layers)
    assert "--approximate" in error.value.remedy


@pytest.mark.parametrize(
    ("given", "sizes", "message"),
    [
        ((), {"q": (10, 6)}, "whose parts are not known"),
        (PARTS, {"q": (10, 6), "k": (10, 7)}, "6 x 10 .*7 x 10"),
        (PARTS, {"q": (10, 6), "k": (11, 6)}, "6 x 10 .*6 x 11"),
        (PARTS, {"mlp": (10, 6)}, "6 x 10"),
        (PARTS, {"q": (10, 6), "k": (10, 7), "v": (10, 6), "mlp": (10, 24)}, "7 x 10"),
    ],
)
def test_parts_whose_sizes_cannot_be_known_are_refused(given, sizes, message):
    with pytest.raises(AdapterError, match=message):
        fused_layer("linear1", "lora", given, make_state("lora", sizes=sizes).layers)
