"""Whole runs with every optimizer: learning, resuming bit for bit, changing the optimizer."""

from statistics import mean

import torch
from runs import CancelAfter, metrics, run_config, tensors

from trainer_core.training import train

# Factors of 4096 numbers and more, which are packed.
RUN = {"adapter": {"kind": "lora", "rank": 32}}
TRAINING = {
    "steps": 6,
    "gradient_accumulation_steps": 1,
    "checkpoint_every": 3,
    "schedule": {"name": "constant", "warmup_steps": 0},
}


def config(folder, cache, name, **overrides):
    training = TRAINING | {"optimizer": {"name": name, "learning_rate": 3e-3}}
    return run_config(folder, cache, training=training, **RUN, **overrides)


def last_state(result):
    folder = result.folder / "checkpoints" / f"{result.step:06d}"
    return tensors(folder / "training_state.safetensors")


def test_a_run_resumes_bit_for_bit_and_learns_as_with_moments_in_fp32(tmp_path, cache):
    whole = train(config(tmp_path / "whole", cache, "adamw8bit"))
    state = last_state(whole)
    moments = [each for name, each in state.items() if name.endswith((".exp_avg", ".exp_avg_sq"))]
    assert {each.dtype for each in moments} == {torch.uint8}
    train(config(tmp_path / "parts", cache, "adamw8bit"), CancelAfter(4))
    parts = train(config(tmp_path / "parts", cache, "adamw8bit", resume="latest"))
    assert parts.step == whole.step == 6
    again = last_state(parts)
    assert state.keys() == again.keys()
    assert all(torch.equal(state[name], again[name]) for name in state)

    plain = train(config(tmp_path / "plain", cache, "adamw"))
    losses = [[line["loss"] for line in metrics(run.folder)] for run in (whole, plain)]
    assert losses[0][0] == losses[1][0]
    assert losses[0] != losses[1]
    # The same draws: the difference is that of the optimizer.
    assert abs(mean(losses[0]) - mean(losses[1])) < 1e-3 * mean(losses[1])


def test_the_optimizer_changes_at_a_resume(tmp_path, cache):
    train(config(tmp_path, cache, "adamw"), CancelAfter(4))
    observer = CancelAfter(99)
    done = train(config(tmp_path, cache, "adamw8bit", resume="latest"), observer)
    said = [
        event.message for event in observer.events if type(event).__name__ in {"Warned", "Noted"}
    ]
    assert any("training.optimizer.name was 'adamw' and is 'adamw8bit'" in each for each in said)
    state = last_state(done)
    steps = {each.item() for name, each in state.items() if name.endswith(".step")}
    assert steps == {6.0}
    assert all(torch.isfinite(each).all() for each in state.values())


def test_a_state_that_means_nothing_begins_anew_and_is_told(tmp_path, cache):
    train(config(tmp_path, cache, "adamw"), CancelAfter(4))
    observer = CancelAfter(99)
    done = train(config(tmp_path, cache, "lion", resume="latest"), observer)
    said = [event.message for event in observer.events if type(event).__name__ == "Noted"]
    assert "The state of adamw means nothing to lion, which begins anew." in said
    names = {name.rpartition(".")[2] for name in last_state(done) if "optimizer." in name}
    assert names == {"exp_avg"}
