"""A run whose blocks are swapped: the bits of one whose blocks are not, and nothing left behind."""

import gc
import threading

import pytest
from runs import PREVIEW, CancelAfter, assert_equal_runs, merge, run_config

from trainer_core.errors import ConfigError, RunError
from trainer_core.offload.streamed_blocks import StreamedBlocks
from trainer_core.training import train
from trainer_core.training.observer import PreviewDone, StepDone

SHORT = {
    "training": {"steps": 3},
    "memory": {"gradient_checkpointing": True},
    "adapter": {"kind": "lora", "dora": True, "init": "pissa", "dropout": 0.0},
    "preview": PREVIEW,
}


def swapping(folder, cache, count, **overrides):
    memory = {"memory": {"blocks_to_swap": count}}
    return run_config(folder, cache, **merge(merge(SHORT, memory), overrides))


def assert_nothing_is_left(threads):
    gc.collect()
    assert not [each for each in gc.get_objects() if isinstance(each, StreamedBlocks)]
    assert threading.active_count() == threads


def test_it_gives_the_bits_of_a_resident_run_also_when_it_is_resumed(tmp_path, cache):
    threads = threading.active_count()
    whole = train(run_config(tmp_path / "a", cache, **SHORT))
    stopped = train(swapping(tmp_path / "b", cache, 5), CancelAfter(1))
    assert (stopped.status, stopped.step) == ("cancelled", 1)
    resumed = train(swapping(tmp_path / "b", cache, 3, memory={"swap_slots": 1}, resume="latest"))
    assert (resumed.status, resumed.folder) == ("done", stopped.folder)
    assert_equal_runs(whole.folder, resumed.folder, 3)
    shown = [
        {path.parent.name: path.read_bytes() for path in (run.folder / "samples").rglob("*.png")}
        for run in (whole, resumed)
    ]
    assert shown[0] == shown[1]
    assert shown[0].keys() == {"000000", "000002", "000003"}
    assert_nothing_is_left(threads)


class Breaks(CancelAfter):
    """Raises when it hears of something."""

    def __init__(self, kind):
        super().__init__(99)
        self.kind = kind

    def notify(self, event):
        if isinstance(event, self.kind):
            raise KeyboardInterrupt


@pytest.mark.parametrize("kind", [StepDone, PreviewDone])
def test_a_run_that_breaks_leaves_nothing(tmp_path, cache, kind):
    threads = threading.active_count()
    with pytest.raises(KeyboardInterrupt):
        train(swapping(tmp_path / "b", cache, 5), Breaks(kind))
    assert_nothing_is_left(threads)


def test_more_blocks_than_there_are_are_refused_before_a_run_has_a_folder(tmp_path, cache):
    with pytest.raises(ConfigError, match=r"memory\.blocks_to_swap is 6, and the base has 5"):
        train(swapping(tmp_path / "run", cache, 6))
    assert not (tmp_path / "run").exists()


@pytest.mark.exhaustive
def test_a_base_that_stays_in_its_file_gives_the_same_bits(tmp_path, cache):
    short = {"training": {"steps": 2, "precision": "bf16"}, "preview": {"every": 0}}
    whole = train(run_config(tmp_path / "a", cache, **merge(SHORT, short)))
    swapped = train(swapping(tmp_path / "b", cache, 5, memory={"master": "file"}, **short))
    assert_equal_runs(whole.folder, swapped.folder, 2)


def test_memory_that_cannot_be_pinned_is_refused(tmp_path, cache):
    with pytest.raises(RunError, match=r"memory\.master is pinned, and the run is on cpu"):
        train(swapping(tmp_path / "run", cache, 2, memory={"master": "pinned"}))
