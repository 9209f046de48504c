"""What becomes of steps that are not finite, followed by hand."""

import math
import weakref
from types import SimpleNamespace

import pytest
import torch
from fixtures.small_trainer import Recording, small_trainer
from fixtures.swapped_blocks import MAKERS, place

from trainer_core.config import RunConfig
from trainer_core.errors import NonFiniteError
from trainer_core.families.registry import get_family
from trainer_core.training.checkpoints.non_finite_recovery import RestoreSignal
from trainer_core.training.checkpoints.train_state import TrainState
from trainer_core.training.memory.memory_manager import MemoryManager
from trainer_core.training.step.micro_batch import MicroBatchResult
from trainer_core.training.step.step_clock import StepClock


def make_run(folder, steps, breaks, saved=(), done=0, **settings):
    """A trainer some of whose losses are not finite, and the states that it can restore."""
    recording = Recording(folder=folder / "v1")
    for step in saved:
        (recording.folder.checkpoints / f"{step:06d}").mkdir(parents=True)
    parameter = torch.nn.Parameter(torch.zeros(1))

    def compute(step, micro):
        loss = parameter.sum() * (math.nan if step in breaks else 1.0)
        yield MicroBatchResult(loss, (0.25,), ("one.png",))

    training = {"steps": steps, "recovery": {"returns": 1, **settings}}
    config = RunConfig.model_validate({"training": training, "preview": {"every": 0}})
    optimizer = torch.optim.SGD([parameter], lr=1.0)
    trainer = small_trainer(config, compute, optimizer, observer=recording, recorder=recording)
    trainer.state.step, trainer._initial_checkpoint = done, None
    return trainer, recording


def test_single_steps_are_left_out_and_told_of(tmp_path):
    trainer, run = make_run(tmp_path, 10, [2, 5, 6, 10], skips=2)
    assert trainer.train() == ("done", 10)
    assert [each.step for each in run.results if not each.skipped] == [1, 3, 4, 7, 8, 9]
    assert [line.split(" is ")[0] for line in run.warned] == [f"Step {n}" for n in (2, 5, 6, 10)]
    assert "2 in a row, 2 at most" in run.warned[2]


@pytest.mark.parametrize(("skips", "broken", "first"), [(0, 5, 5), (1, 6, 5), (3, 8, 5)])
def test_more_in_a_row_lead_back_to_a_state_before_the_first(tmp_path, skips, broken, first):
    trainer, run = make_run(tmp_path, 20, range(5, 20), saved=[0, 2, 4, 5, 6], skips=skips)
    with pytest.raises(RestoreSignal) as restored:
        trainer._train_steps()
    # Not to the state of step 4 either, from which the same numbers follow.
    assert (restored.value.step, restored.value.target) == (broken, 2)
    assert run.ended is None
    trainer.state.step, trainer.state.skipped_in_a_row, trainer.state.restores = 2, 0, 1
    with pytest.raises(NonFiniteError) as error:
        trainer.train()
    assert run.ended == (broken, first)
    where = "(of the adapted layers: in no such layer; without the adapter the loss is not finite"
    text = f"the loss of step {broken} is not finite {where} either); samples of this step: one.png"
    assert error.value.found.startswith(text)
    assert error.value.remedy == "what to do"


def test_without_a_state_or_leave_to_go_back_it_ends(tmp_path):
    for saved, settings in (([], {}), ([0, 2], {"returns": 0})):
        trainer, run = make_run(tmp_path / str(len(saved)), 20, range(5, 20), saved, **settings)
        with pytest.raises(NonFiniteError):
            trainer.train()
        assert run.ended == (8, 5)


def test_weights_that_are_not_finite_lead_back_too(tmp_path, monkeypatch):
    trainer, run = make_run(tmp_path, 20, [], saved=[4, 8])

    def save(step):
        raise NonFiniteError("adapter.x is not finite at step 8", "finite weights", "")

    monkeypatch.setattr(run, "save", save)
    with pytest.raises(RestoreSignal) as restored:
        trainer.save_checkpoint(8)
    assert (restored.value.step, restored.value.target) == (9, 4)
    trainer.state.restores = 1
    with pytest.raises(NonFiniteError, match=r"adapter\.x is not finite") as raised:
        trainer.save_checkpoint(8)
    assert raised.value.remedy == "what to do"


def test_a_restored_state_has_the_device_and_the_clock_to_itself(tmp_path, monkeypatch):
    """An optimizer's state may be as large as all that is left of the device."""
    trainer, run = make_run(tmp_path, 4, [])
    placed = place(MAKERS["flux"](), get_family("flux"), 1, slots=1)
    state, gone = trainer.state, []
    trainer.memory = MemoryManager(placed, trainer.parameters, state.optimizer, run, run.save)
    trainer.clock = StepClock(torch.device("meta"))  # which tells of a step when the next is made
    trainer._initial_checkpoint = trainer._initial_state()
    trainer.clock.take()
    old, restore = weakref.ref(state.optimizer), TrainState.restore
    restored = lambda *args: gone.append(old() is None) or restore(*args)  # noqa: E731
    monkeypatch.setattr(TrainState, "restore", restored)
    trainer.recorder = None
    trainer.restore_checkpoint(3, 0)
    assert gone == [True]
    trainer.recorder = SimpleNamespace(record_restore=lambda *_: None, reopen=lambda _: None)
    trainer.restore_checkpoint(3, 0)
    assert "anew" not in run.warned[-1]
    trainer._initial_checkpoint.settings["training.optimizer.name"] = "lion"
    trainer.restore_checkpoint(3, 0)
    assert run.warned[-1].endswith("means nothing to adamw, which begins anew.")
    assert trainer.clock.take() is None
    placed.close()
