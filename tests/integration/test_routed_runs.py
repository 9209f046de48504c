"""Runs whose tokens are routed, with everything that keeps or computes blocks in another way."""

import pytest
from runs import CancelAfter, assert_equal_runs, merge, metrics, run_config

from tests.fixtures.compiler import NEEDS_COMPILER
from trainer_core.training import train

ROUTED = {
    "training": {"steps": 3, "routing": {"share": 0.5, "first": 1, "last": 1}},
    "adapter": {"kind": "lora", "dora": True, "dropout": 0.0},
    "memory": {"gradient_checkpointing": True},
}
WAYS = {
    "swapped": {"blocks_to_swap": 4, "swap_slots": 1},
    "kept": {"blocks_to_checkpoint": 2},
    "inputs in RAM": {"checkpoint_inputs": "ram"},
    "dense": {"gradient_checkpointing": False},
}
pytestmark = pytest.mark.exhaustive


def run(folder, cache, observer=None, **changed):
    return train(run_config(folder, cache, **merge(ROUTED, changed)), observer)


@pytest.mark.parametrize("way", WAYS)
def test_bits_are_those_of_a_resident_run_also_when_it_is_resumed(tmp_path, cache, way):
    whole = run(tmp_path / "whole", cache)
    stopped = run(tmp_path / "other", cache, CancelAfter(1), memory=WAYS[way])
    resumed = run(tmp_path / "other", cache, memory=WAYS[way], resume="latest")
    assert (stopped.status, resumed.status, resumed.folder) == ("cancelled", "done", stopped.folder)
    assert_equal_runs(whole.folder, resumed.folder, 3)
    every = train(run_config(tmp_path / "every", cache, **merge(ROUTED, UNROUTED)))
    assert every.losses != whole.losses


UNROUTED = {"training": {"routing": {"share": 1.0, "first": 2, "last": 2}}}


@pytest.mark.parametrize("base_format", ["int8", "nf4"])
def test_a_base_in_fewer_bits_is_swapped_with_the_same_bits(tmp_path, cache, base_format):
    memory = {"base_format": base_format}
    resident = run(tmp_path / "resident", cache, memory=memory)
    swapped = run(tmp_path / "swapped", cache, memory=memory | WAYS["swapped"])
    assert_equal_runs(resident.folder, swapped.folder, 3)


@NEEDS_COMPILER
def test_compiled_blocks_have_the_losses_of_others(tmp_path, cache):
    told, adapter = CancelAfter(), {"dora": False}
    plain = run(tmp_path / "plain", cache, adapter=adapter)
    found = run(tmp_path / "compiled", cache, told, adapter=adapter, memory={"compile": True})
    assert not [line for line in told.said() if "memory.compile" in line]
    losses = [[line["loss"] for line in metrics(each.folder)] for each in (found, plain)]
    assert losses[0] == pytest.approx(losses[1], rel=1e-5)
    assert losses[0] != losses[1], "nothing was compiled"
