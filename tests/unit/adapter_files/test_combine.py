"""Adapters are added up exactly, or cut as closely as their rank allows; sizes change likewise."""

import dataclasses

import pytest
import torch

from tests.fixtures.adapter_states import SIZES, STATES, make_state
from tests.fixtures.textbook import relative, textbook_delta
from trainer_core.adapter_files.tools.combine import combine_adapters
from trainer_core.adapter_files.tools.resize_and_extract import (
    Sizes,
    rank_for_error,
    resize_adapter,
)
from trainer_core.adapters.kinds.registry import layer_delta
from trainer_core.errors import AdapterError
from trainer_core.families.registry import FAMILIES
from trainer_core.types import AdapterState

LORAS = (make_state("lora", rank=2, seed=1), make_state("lora", rank=3, alpha=1.0, seed=2))


def combine(inputs, rank=None):
    return combine_adapters(inputs, FAMILIES["flux"].layers.key_map, rank)


def exact_delta(state, name):
    layer = state.layers[name]
    factors = {factor: tensor.double() for factor, tensor in layer.tensors.items()}
    return textbook_delta(state.kind, factors, layer.alpha, layer.rank)


def test_loras_lie_side_by_side():
    weights = (0.7, -1.5)
    combined, errors = combine(list(zip(LORAS, weights, strict=True)))
    assert set(combined.layers) == set(SIZES)
    assert set(errors.values()) == {0.0}
    for name, layer in combined.layers.items():
        expected = sum(
            weight * exact_delta(state, name) for state, weight in zip(LORAS, weights, strict=True)
        )
        assert layer.rank == 5
        assert layer.alpha == 5.0
        assert relative(layer_delta("lora", layer), expected) < 1e-6
    wrong = sum(exact_delta(state, "head") for state in LORAS)
    assert relative(layer_delta("lora", combined.layers["head"]), wrong) > 0.1


@pytest.mark.parametrize("names", [("lora",), ("lora", "lora"), ("lokr full", "loha", "lora")])
@pytest.mark.parametrize("rank", [1, 3])
def test_a_cut_is_the_closest_of_its_rank(names, rank):
    sizes = {"layer": (36, 48)}
    states = [
        make_state(STATES[n].kind, rank=4, seed=i, sizes=sizes, full_matrix=n == "lokr full")
        for i, n in enumerate(names)
    ]
    inputs = [(state, 1.0 + number) for number, state in enumerate(states)]
    combined, errors = combine(inputs, rank)
    total = sum(weight * exact_delta(state, "layer") for state, weight in inputs)
    values = torch.linalg.svdvals(total)
    expected = float(values[rank:].norm() / values.norm())
    assert combined.layers["layer"].rank == rank
    assert errors["layer"] == pytest.approx(expected, abs=1e-6)
    assert relative(layer_delta("lora", combined.layers["layer"]), total) == pytest.approx(
        expected, abs=1e-6
    )


def test_differences_are_added_up_and_replacements_refused():
    one = dataclasses.replace(LORAS[0], extras={"head": {"diff_b": torch.ones(9)}})
    two = dataclasses.replace(
        LORAS[1], extras={"head": {"diff_b": torch.full((9,), 2.0), "diff": torch.ones(9, 12)}}
    )
    combined, _ = combine([(one, 0.5), (two, 2.0)])
    assert combined.extras["head"]["diff_b"].tolist() == [4.5] * 9
    assert combined.extras["head"]["diff"].tolist() == [[2.0] * 12] * 9
    setting = dataclasses.replace(LORAS[1], extras={"head": {"set_weight": torch.ones(9, 12)}})
    with pytest.raises(AdapterError, match="set_weight"):
        combine([(one, 1.0), (setting, 1.0)])
    other = dataclasses.replace(LORAS[1], extras={"head": {"diff_b": torch.ones(8)}})
    with pytest.raises(AdapterError, match="different shapes"):
        combine([(one, 1.0), (other, 1.0)])


def test_what_has_no_sum_is_refused():
    dora = make_state("lora", dora=True)
    with pytest.raises(AdapterError, match="DoRA"):
        combine([(dora, 1.0), (LORAS[0], 1.0)])
    with pytest.raises(AdapterError, match="rank 14 and is larger"):
        combine([(STATES["lokr full"], 1.0), (LORAS[0], 1.0)])
    wide = make_state("lora", sizes={**SIZES, "head": (13, 9)})
    with pytest.raises(AdapterError, match="head is 9 x 12 and 9 x 13"):
        combine([(LORAS[0], 1.0), (wide, 1.0)])


@pytest.mark.parametrize("share", [0.5, 0.1, 0.01])
@pytest.mark.parametrize("kind", ["lora", "lokr"])
def test_a_rank_by_error_is_the_smallest_that_keeps_it(kind, share):
    options = {"factor": 2, "full_matrix": True} if kind == "lokr" else {}
    state = make_state(kind, rank=12, sizes={"layer": (40, 48)}, **options)
    falling = {
        name: tensor * 0.7 ** torch.arange(len(tensor))[:, None]
        if name in {"lora_down", "lokr_w2"}
        else tensor
        for name, tensor in state.layers["layer"].tensors.items()
    }
    layer = dataclasses.replace(state.layers["layer"], tensors=falling)
    state = AdapterState(kind, {"layer": layer})
    rank = rank_for_error(kind, layer, share)
    resized, errors = resize_adapter(state, Sizes(error=share))
    assert resized.layers["layer"].rank == rank
    assert errors["layer"] <= share
    found = layer_delta(kind, resized.layers["layer"])
    assert relative(found, exact_delta(state, "layer")) <= share + 1e-6
    if rank > 1:
        assert resize_adapter(state, Sizes(rank=rank - 1))[1]["layer"] > share
