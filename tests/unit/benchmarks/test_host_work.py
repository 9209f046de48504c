"""What the host does for each adapted layer, beside PEFT's, by counters without noise."""

import pytest

from benchmarks.host_work import COLUMNS, measure, shares
from benchmarks.measuring.host_work import HostWork
from benchmarks.measuring.record import RESULTS, read_record


@pytest.fixture(scope="module")
def found():
    return measure()


def test_a_layer_costs_the_host_no_more_than_its_bar(found):
    assert {key: share for key, share in shares(found).items() if share > 1.0} == {}


def test_a_layer_above_its_bar_is_noticed(found):
    slow = {**found["fp32"]["lokr"], "ours": HostWork(1000.0, 1.0, 1.0)}
    above = shares({"fp32": {"lokr": slow}})
    assert above["fp32", "lokr", "ours", "python_calls"] > 1.0
    assert above["fp32", "lokr", "ours", "operations"] < 1.0


def test_the_recorded_counters_are_those_of_the_code(found):
    rows = read_record(RESULTS / "host_work.json")["rows"]
    recorded = {
        (row["weights"], row["kind"], row["source"]): tuple(row[each] for each in COLUMNS)
        for row in rows
        # PEFT's are those of the version that is here.
        if row["source"] != "PEFT"
    }
    now = {
        (name, kind, source): tuple(getattr(work, each) for each in COLUMNS)
        for name, kinds in found.items()
        for kind, sources in kinds.items()
        for source, work in sources.items()
        if source != "PEFT"
    }
    assert now == recorded
