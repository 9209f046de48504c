"""A run on a second device asks nothing of the first, and pins what the system lets it pin."""

import gc

import pytest
import torch
from runs import run_config

from tests.fixtures.combinations import some
from tests.fixtures.pretend_cuda import runtime
from tests.gpu.memory import PRETENDED
from trainer_core.device import pin, refused_pins
from trainer_core.offload import pinned_memory
from trainer_core.training import train
from trainer_core.training.observer import SilentObserver, Warned

pytestmark = pytest.mark.gpu

AWAY = {"blocks_to_swap": 2, "gradient_checkpointing": True, "checkpoint_inputs": "ram"}
PREVIEW = {"every": 2, "prompts": ["a red star on blue"], "width": 64, "height": 64}


class Heard(SilentObserver):
    """What a run has warned of."""

    def __init__(self):
        self.warned = []

    def notify(self, event):
        if isinstance(event, Warned):
            self.warned.append(event.message)


def run(folder, cache, device, **memory):
    heard, training = Heard(), {"precision": "bf16", "steps": 3}
    memory = {"device": device, **AWAY, **memory}
    config = run_config(folder, cache, memory=memory, training=training, preview=PREVIEW)
    return train(config, heard), heard.warned


@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two CUDA devices")
@pytest.mark.parametrize("master", some(["pinned", "pageable"], "pinned"))
def test_the_first_device_is_left_alone(tmp_path, cache, monkeypatch, master):
    found, driver = [], pinned_memory._runtime()

    class Asked:
        def __getattr__(self, name):
            found.append(torch.cuda.current_device())
            return getattr(driver, name)

    monkeypatch.setattr(pinned_memory, "_runtime", Asked)
    gc.collect()  # what others left there would go meanwhile
    torch.cuda.reset_peak_memory_stats(0)
    before = torch.cuda.memory_allocated(0)
    result, _ = run(tmp_path / "run", cache, "cuda:1", master=master)
    assert result.status == "done"
    assert set(found) == {1}
    assert torch.cuda.current_device() == 0
    assert torch.cuda.max_memory_allocated(0) == before


@pytest.mark.exhaustive
@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two CUDA devices")
def test_encoders_compute_on_a_device_of_their_own(tmp_path, cache):
    losses = []
    for name, own in (("alone", None), ("beside", "cuda:1")):
        fresh = tmp_path / name
        torch.cuda.reset_peak_memory_stats(1)
        used = torch.cuda.memory_allocated(1)
        result, _ = run(fresh, fresh / "cache", "cuda:0", encoder_device=own)
        losses.append(result.losses)
        assert (torch.cuda.max_memory_allocated(1) > used) == (own is not None)
        assert len(result.pictures) == 3
    assert losses[0] == losses[1]


@pytest.mark.skipif(not PRETENDED, reason="a driver that refuses is pretended")
def test_ram_that_is_not_pinned_is_said_once_and_changes_no_number(tmp_path, cache):
    pinned, before = run(tmp_path / "pinned", cache, "cuda", master="auto")
    with runtime.pinned_limit(0):
        pageable, said = run(tmp_path / "pageable", cache, "cuda", master="auto")
        assert not pin(torch.ones(3), torch.device("cuda")).is_pinned()
    (line,) = set(said) - set(before)
    assert line.startswith("The system refuses to pin more RAM (")
    assert said.count(line) == 1
    assert pageable.losses == pinned.losses
    assert "CUDA error: out of memory" in refused_pins
