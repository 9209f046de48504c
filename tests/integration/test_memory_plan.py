"""Runs that choose their plan: the bits of a resident one, refused before anything is loaded."""

import pytest
import yaml
from runs import CancelAfter, assert_equal_runs, merge, metrics, record, run_config

from tests.fixtures.machines import SmallMachine
from trainer_core.errors import RunError
from trainer_core.offload.machine import Machine
from trainer_core.training import train
from trainer_core.training.observer import MemoryPlanned
from trainer_core.training.setup import load as loaded

MIB = 1 << 20
SHORT = {
    "training": {
        "steps": 2,
        "batch_size": 1,
        "gradient_accumulation_steps": 1,
        "schedule": {"warmup_steps": 0},
    },
    "memory": {"gradient_checkpointing": True},
    "adapter": {"kind": "lora", "rank": 2, "dropout": 0.0, "targets": [r".*\.attn\.to_q"]},
}


def short(folder, cache, **overrides):
    return run_config(folder, cache, **merge(SHORT, overrides))


def watched(config, machine=None, cancel_after=99):
    observer = CancelAfter(cancel_after)
    result = train(config, observer, machine=machine)
    plans = [each for each in observer.events if isinstance(each, MemoryPlanned)]
    return result, plans, observer.said()


def kept(result):
    return record(result.folder)["memory"]


class Unasked(SmallMachine):
    """What it has is nobody's business."""

    def free_memory(self, device):
        raise AssertionError("asked")


@pytest.mark.exhaustive
def test_what_does_not_fit_is_swapped_and_gives_the_bits_of_a_resident_run(tmp_path, cache):
    kept_so = {"blocks_to_checkpoint": 5, "checkpoint_inputs": "device"}
    dense = {"memory": {"base_format": "dense", **kept_so}}
    whole, (roomy,), _ = watched(short(tmp_path / "a", cache, **dense), SmallMachine(60 * MIB))
    first = roomy.rows[0]
    assert (first.blocks_to_swap, first.master, first.blocks_to_checkpoint) == (0, "none", 5)
    assert (roomy.device_free, roomy.ram_free) == (60 * MIB, 64 << 30)
    tight = SmallMachine(first.device_bytes - 1)
    small, (plan,), told = watched(short(tmp_path / "b", cache, **dense), tight)
    row = plan.rows[0]
    assert (row.base_format, row.master) == ("dense", "pageable")
    assert 0 < row.blocks_to_swap <= 5
    assert row.device_bytes < first.device_bytes
    assert [each for each in told if "memory" in each] == []
    assert_equal_runs(whole.folder, small.folder, 2)
    # The record has what was done, and the run file the user's words.
    assert kept(small)["blocks_to_swap"] == row.blocks_to_swap
    said = yaml.safe_load((small.folder / "run.yaml").read_text())["memory"]
    assert (said["plan"], said["blocks_to_swap"], said["master"]) == ("auto", None, "auto")


def test_what_fits_in_no_way_is_refused_before_anything_is_read(tmp_path, cache, monkeypatch):
    def load(*args):
        raise AssertionError("loaded")

    monkeypatch.setattr(loaded, "_load_adapted", load)
    asked = {"memory": {"base_format": "dense", "blocks_to_swap": 0}}
    with pytest.raises(RunError) as caught:
        watched(short(tmp_path / "run", cache, **asked), SmallMachine(12 * MIB))
    assert "nothing swapped" in caught.value.found
    assert "12.0 MiB are free" in caught.value.found
    assert "Set memory.blocks_to_swap to " in caught.value.remedy
    assert not (tmp_path / "run").exists()


def test_off_and_a_cpu_ask_for_nothing_and_plan_nothing(tmp_path, cache):
    class Cpu(Unasked):
        plans_for = Machine.plans_for

    cpu, plans, told = watched(short(tmp_path / "a", cache, memory={"swap_slots": 3}), Cpu(0))
    assert plans == []
    assert [each for each in told if "memory" in each] == [
        "memory.swap_slots is 3, and no block is swapped: it changes nothing. "
        "memory.blocks_to_swap says how many are."
    ]
    off, plans, _ = watched(short(tmp_path / "b", cache, memory={"plan": "off"}), Unasked(0))
    assert plans == []
    assert kept(off)["base_format"] == "dense"
    assert metrics(cpu.folder) == metrics(off.folder)


def test_a_base_that_is_tiny_beside_what_is_free_is_not_planned(tmp_path, cache):
    machine = SmallMachine(4 << 30)
    _, plans, _ = watched(short(tmp_path, cache, training={"steps": 1}), machine)
    assert (plans, machine.asked) == ([], 1)
