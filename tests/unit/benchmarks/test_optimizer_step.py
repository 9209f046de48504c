"""A step of AdamW asks torch for a few operations, however many layers there are."""

import json

from benchmarks.measuring.counters import count
from benchmarks.measuring.record import RESULTS
from benchmarks.optimizer_step import BAR, COUNT, ways


def counted(tensors):
    found = {}
    for name, optimizer in ways(tensors, (4, 6)).items():
        optimizer.step()
        found[name] = count(optimizer.step).dispatched
    return found


def test_operations_do_not_grow_with_the_layers():
    few, many = counted(5), counted(50)
    assert few["ours"] == many["ours"] < 10
    assert many["foreach"] > few["foreach"]
    assert many["one by one"] > 5 * few["one by one"]


def test_the_committed_figures_meet_the_bar():
    result = json.loads((RESULTS / "optimizer_step.json").read_text(encoding="utf-8"))
    rows = {row["way"]: row for row in result["rows"]}
    assert rows["ours"]["of_foreach"] <= BAR
    assert rows["foreach"]["operations"] > 2 * COUNT > rows["ours"]["operations"]
