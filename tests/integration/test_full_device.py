"""A device without room: the run swaps more blocks and learns what it would have learned."""

import threading

import pytest
import torch
from runs import PREVIEW, CancelAfter, assert_equal_runs, merge, metrics, run_config, tensors
from test_block_swap import assert_nothing_is_left

from tests.fixtures.combinations import rarely
from tests.fixtures.small_device import MasterBeside, SmallDevice
from trainer_core.errors import RESUME, RunError
from trainer_core.offload import load_base
from trainer_core.offload.machine import Machine
from trainer_core.training import train
from trainer_core.training.observer import CheckpointSaved, RunStarted, StepDone
from trainer_core.training.recorder import Recorder

SHORT = {
    "training": {"steps": 2, "batch_size": 1},
    "memory": {"gradient_checkpointing": True, "swap_slots": 1},
    "adapter": {"kind": "lora", "dora": True, "dropout": 0.1},
}
IN_RAM = {"blocks_to_checkpoint": 1, "checkpoint_inputs": "ram"}


class OnDevice(CancelAfter):
    """Sets the limit of a small device when it hears of an event."""

    def __init__(self, device, when, limit):
        super().__init__()
        self.device, self.when, self.limit = device, when, limit

    def notify(self, event):
        super().notify(event)
        if isinstance(event, self.when):
            self.device.limit = self.limit(self.device.now)


@pytest.fixture
def device(monkeypatch):
    found = SmallDevice()
    monkeypatch.setattr(load_base, "make_master", lambda *_: MasterBeside(found))
    for name in ("save", "finish"):  # what is written is copied to RAM first
        monkeypatch.setattr(Recorder, name, in_ram(found, getattr(Recorder, name)))
    return found


def in_ram(device, method):
    def call(*given):
        with device.host():
            return method(*given)

    return call


@pytest.fixture(scope="module")
def whole(tmp_path_factory, cache):
    """The folder of a run with room."""
    return train(run_config(tmp_path_factory.mktemp("whole"), cache, **SHORT)).folder


def start(folder, cache, observer, device, **overrides):
    threads = threading.active_count()
    try:
        with device:
            found = train(run_config(folder, cache, **merge(SHORT, overrides)), observer)
    finally:
        device.limit = None
    assert_nothing_is_left(threads)
    return found


def test_a_step_that_does_not_fit_is_made_again_with_more_blocks_swapped(
    tmp_path, cache, device, whole
):
    observer = OnDevice(device, RunStarted, lambda now: now + 400_000)
    found = start(tmp_path, cache, observer, device)
    assert device.refused
    (note,) = [each for each in observer.said() if "instead of" in each]
    assert "blocks are swapped" in note
    assert_equal_runs(whole, found.folder, 2)


def test_where_nothing_helps_the_state_before_is_saved_and_the_run_can_go_on(
    tmp_path, cache, device, whole
):
    observer = OnDevice(device, StepDone, lambda now: 2_000_000)
    with pytest.raises(RunError) as caught:
        start(tmp_path, cache, observer, device)
    assert "memory is full in step 2" in caught.value.found
    assert "all blocks are swapped" in caught.value.found
    assert "resume=latest" in caught.value.remedy
    del caught
    assert_nothing_is_left(threading.active_count())
    found = train(run_config(tmp_path, cache, **merge(SHORT, {"resume": "latest"})))
    assert (found.status, found.step) == ("done", 2)
    assert_equal_runs(whole, found.folder, 2)


def test_a_preview_that_does_not_fit_is_left_out(tmp_path, cache, device):
    observer = OnDevice(device, CheckpointSaved, lambda now: now + 1000)
    found = start(
        tmp_path, cache, observer, device, preview={**PREVIEW, "every": 1}, training={"steps": 1}
    )
    assert any(each.startswith("No previews of step 1: the device") for each in observer.said())
    assert (found.status, len(found.pictures)) == ("done", 1)  # that of step 0


@pytest.mark.parametrize("most", [1, pytest.param(2, marks=pytest.mark.exhaustive)])
def test_a_base_that_does_not_fit_is_loaded_again_with_more_blocks_swapped(
    tmp_path, cache, monkeypatch, whole, most
):
    counts = []

    class Full(load_base.StreamedBlocks):
        def place_rest(self, *given):
            counts.append(self.count)
            if self.count <= most:
                raise torch.OutOfMemoryError("no room")
            super().place_rest(*given)

    monkeypatch.setattr(load_base, "StreamedBlocks", Full)
    observer, threads = CancelAfter(), threading.active_count()
    config = run_config(tmp_path, cache, **merge(SHORT, {"memory": {"blocks_to_swap": 1}}))
    found = train(config, observer)
    assert counts[: most + 1] == [1, 2, 4][: most + 1]
    assert_equal_runs(whole, found.folder, 2)
    monkeypatch.undo()
    assert_nothing_is_left(threads)


def test_a_base_that_fits_in_no_way_is_refused(tmp_path, cache, monkeypatch):
    def full(*_):
        raise torch.OutOfMemoryError("no room")

    monkeypatch.setattr(load_base.StreamedBlocks, "place_rest", full)
    config = run_config(tmp_path, cache, **merge(SHORT, {"memory": {"blocks_to_swap": 3}}))
    with pytest.raises(RunError, match="and 5 of 5 blocks are swapped"):
        train(config)


class Pressed(Machine):
    """Others want memory before the second step."""

    def __init__(self):
        self.asked = 0

    def missing_memory(self, device):
        self.asked += 1
        return 3 * 10**6 if self.asked == 2 else 0


@pytest.mark.parametrize("memory", [*rarely([({},)]), IN_RAM])
def test_others_get_the_memory_that_they_need_between_steps(tmp_path, cache, whole, memory):
    observer, machine = CancelAfter(), Pressed()
    config = run_config(tmp_path, cache, **merge(SHORT, {"memory": memory}))
    found = train(config, observer, machine=machine)
    said = observer.said()
    assert "Others need the device's memory: 3 instead of 0 blocks are swapped." in said
    assert machine.asked == 2
    assert_equal_runs(whole, found.folder, 2)


BATCH = {
    # Its updates are as exact as the gradients are; those of AdamW are as large for the smallest.
    "training": {"steps": 2, "batch_size": 4, "optimizer": {"name": "sgd", "learning_rate": 1.0}},
    "adapter": {"kind": "lora", "dropout": 0.0, "dora": False},
    "memory": {"gradient_checkpointing": False},
}


@pytest.mark.parametrize(
    ("room", "parts"),
    [
        (4 * 10**6, ["2 instead of 4"]),
        pytest.param(2 * 10**6, ["2 instead of 4", "1 instead of 2"], marks=pytest.mark.exhaustive),
    ],
)
def test_where_nothing_can_be_swapped_a_batch_goes_through_in_parts(
    tmp_path, cache, device, room, parts
):
    whole = train(run_config(tmp_path / "whole", cache, **merge(SHORT, BATCH)))
    observer = OnDevice(device, RunStarted, lambda now: now + room)
    found = start(tmp_path / "small", cache, observer, device, **BATCH)
    assert device.refused == len(parts)
    assert [note.partition("): ")[2] for note in observer.said() if "Memory was full" in note] == [
        f"{each} samples go through the base at once." for each in parts
    ]
    lines = [metrics(each.folder) for each in (whole, found)]
    for one, other in zip(*lines, strict=True):
        assert one["sigma_mean"] == other["sigma_mean"]
        assert other["loss"] == pytest.approx(one["loss"], rel=1e-5)
        assert other["grad_norm"] == pytest.approx(one["grad_norm"], rel=1e-4)
    expected = tensors(whole.adapters[0])
    for name, tensor in tensors(found.adapters[0]).items():
        torch.testing.assert_close(tensor, expected[name], rtol=1e-4, atol=1e-7)
    assert any(each.abs().max() > 1e-3 for name, each in expected.items() if "lora_up" in name)


class StopsAt(CancelAfter):
    """Raises at a step what a GPU says that has stopped."""

    def requests(self):
        if self.last == self.step - 1:
            kind = getattr(torch, "AcceleratorError", RuntimeError)
            raise kind("CUDA error: uncorrectable ECC error encountered\nand more")
        return super().requests()


def test_a_device_that_stops_is_told_and_the_run_goes_on_from_its_last_checkpoint(tmp_path, cache):
    wanted = train(run_config(tmp_path / "whole", cache, training={"steps": 4}))
    settings = {"training": {"steps": 4, "checkpoint_every": 2}}
    with pytest.raises(
        RunError, match=r"GPU has stopped \(CUDA error: uncorrectable ECC"
    ) as caught:
        train(run_config(tmp_path / "stops", cache, **settings), StopsAt(4))
    assert RESUME in caught.value.remedy
    found = train(run_config(tmp_path / "stops", cache, **settings, resume="latest"))
    assert (found.status, found.step) == ("done", 4)
    assert_equal_runs(found.folder, wanted.folder, 4)
