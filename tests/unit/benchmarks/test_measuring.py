"""The benchmark's own parts: what it counts, what it times, what it calls met."""

from dataclasses import replace

import pytest
import torch

from benchmarks.measuring.counters import Peak, Products
from benchmarks.measuring.fidelity import measure_fidelity
from benchmarks.measuring.goals import judge
from benchmarks.measuring.peers import peer_recipes
from benchmarks.measuring.recipes import as_if_updated, our_recipes
from benchmarks.measuring.single_layer import Layer, measure_layer
from benchmarks.measuring.tables import verdict_table
from benchmarks.measuring.timing import Ratio

SMALL = Layer(64, 64, torch.bfloat16, "cpu")
GOAL_SECTION = "layer 3072->3072 bf16 cpu"


def recipes(*names):
    found = [each for each in our_recipes() if each.name in names]
    assert len(found) == len(names)
    return found


def test_the_products_of_attention_are_those_of_its_matrices():
    rows, columns, width = 6, 10, 8
    query, other = torch.ones(2, rows, width, requires_grad=True), torch.ones(2, columns, width)
    with Products() as products:
        found = torch.nn.functional.scaled_dot_product_attention(
            query[None], other[None], other[None]
        )
        forward = products.flops
        found.sum().backward()
    one = 2 * 2 * rows * columns * width
    assert forward == 2 * one
    # Again the scores, and a gradient of each of four matrices.
    assert products.flops == 2 * one + 5 * one


def test_peak_is_of_what_lives_at_once():
    x = torch.zeros(1024)

    def one_after_the_other():
        for _ in range(5):
            (x + 1).sum()

    def all_at_once():
        return torch.stack([x + number for number in range(5)])

    with Peak() as low:
        one_after_the_other()
    with Peak() as high:
        all_at_once()
    assert 4096 <= low.bytes < 2 * 4096
    assert high.bytes >= 10 * 4096


def test_a_mark_of_an_update_makes_what_was_cached_stale():
    built = recipes("ours dora output")[0].build(torch.nn.Linear(32, 32).requires_grad_(False))
    layer = built.forward[0]
    first = layer.norm()
    assert layer.norm() is first
    as_if_updated(built.parameters)
    assert layer.norm() is not first


def test_peft_is_measured_with_the_same_arithmetic():
    peers, _ = peer_recipes(["PEFT"])
    group = [each for each in peers if each.name == "PEFT lora"]
    ours, theirs = measure_layer(SMALL, [*recipes("ours lora"), *group], rounds=0)[1:]
    assert theirs.flops == ours.flops
    assert theirs.written > ours.written


def test_exact_delta_keeps_what_the_default_form_loses():
    default, exact = measure_fidelity(recipes("ours lora", "ours lora exact_delta"), "cpu")
    assert default.gains["1e-03"] < 0.7
    assert exact.gains["1e-03"] > 0.95
    assert exact.gains["1e-04"] > 0.9


def measured(**changes):
    row = measure_layer(SMALL, recipes("ours lora"), rounds=0)[1]
    good = {"saved": 1.0052, "written": 2.1, "flops": 1.016, "times": {"eager": Ratio(1.1, 1.1)}}
    return replace(row, **{**good, **changes})


def verdicts(*rows):
    return {each.goal.quantity: each for each in judge({GOAL_SECTION: rows})}


def test_a_goal_is_met_or_not_by_what_was_measured():
    peft = measured(name="PEFT lora", source="PEFT", times={"eager": Ratio(1.3, 1.3)})
    found = verdicts(measured(), peft)
    assert {each.goal.group for each in found.values()} == {"lora"}
    assert all(each.met for each in found.values())
    assert found["time eager"].measured == pytest.approx(1.1 / 1.3, abs=1e-4)
    assert found["time eager"].against == "PEFT lora"
    worse = verdicts(measured(saved=1.02, times={"eager": Ratio(1.25, 1.25)}), peft)
    assert {name for name, each in worse.items() if not each.met} == {"saved", "time eager"}
    assert "NOT MET" in verdict_table("goals", list(worse.values()))
