"""A run that computes some blocks again, with their inputs in RAM: the bits of any other run."""

import gc

import pytest
from runs import CancelAfter, assert_equal_runs, merge, run_config

from trainer_core.offload import checkpointed_blocks
from trainer_core.offload.host_inputs import HostInputs
from trainer_core.training import train

SHORT = {"training": {"steps": 3}, "adapter": {"kind": "lokr", "dora": True, "dropout": 0.2}}


@pytest.mark.exhaustive
def test_it_gives_the_bits_of_a_run_without_also_when_it_is_resumed(tmp_path, cache, monkeypatch):
    monkeypatch.setattr(checkpointed_blocks, "WORTH", 1)

    def config(name, **memory):
        resume = {"resume": memory.pop("resume", "none")}
        return run_config(tmp_path / name, cache, **merge(SHORT, {"memory": memory} | resume))

    whole = train(config("a", gradient_checkpointing=False))
    memory = {"gradient_checkpointing": True, "checkpoint_inputs": "ram"}
    stopped = train(config("b", **memory, blocks_to_checkpoint=2), CancelAfter(1))
    resumed = train(
        config("b", **memory, blocks_to_checkpoint=3, blocks_to_swap=2, resume="latest")
    )
    assert (resumed.status, resumed.folder) == ("done", stopped.folder)
    assert_equal_runs(whole.folder, resumed.folder, 3)
    gc.collect()
    assert not [each for each in gc.get_objects() if isinstance(each, HostInputs)]
