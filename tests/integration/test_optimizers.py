"""Whole runs with moments in 8 bits, and with another optimizer from a resume on."""

import torch
from runs import CancelAfter, metrics, run_config, tensors

from trainer_core.training import train

TRAINING = {
    "steps": 6,
    "gradient_accumulation_steps": 1,
    "checkpoint_every": 3,
    "schedule": {"name": "constant", "warmup_steps": 0},
}


def config(folder, cache, name, **overrides):
    training = TRAINING | {"optimizer": {"name": name, "learning_rate": 3e-3}}
    # Factors of 4096 numbers and more, which are packed.
    adapter = {"kind": "lora", "rank": 32}
    return run_config(folder, cache, training=training, adapter=adapter, **overrides)


def last_state(result):
    folder = result.folder / "checkpoints" / f"{result.step:06d}"
    return tensors(folder / "training_state.safetensors")


def test_a_run_learns_as_with_moments_in_fp32(tmp_path, cache):
    packed, plain = (train(config(tmp_path / name, cache, name)) for name in ("adamw8bit", "adamw"))
    losses = [[line["loss"] for line in metrics(run.folder)] for run in (packed, plain)]
    assert losses[0][0] == losses[1][0]
    assert losses[0] != losses[1]
    # The same draws: the difference is that of the optimizer.
    assert abs(sum(losses[0]) - sum(losses[1])) < 1e-3 * sum(losses[1])


def test_the_optimizer_changes_at_a_resume(tmp_path, cache):
    """One with the same moments takes them over; what means nothing begins anew and is told."""
    train(config(tmp_path, cache, "adamw"), CancelAfter(2))
    observer = CancelAfter(4)
    done = train(config(tmp_path, cache, "adamw8bit", resume="latest"), observer)
    named = "training.optimizer.name was 'adamw' and is 'adamw8bit'"
    assert any(named in each for each in observer.said())
    state = last_state(done)
    assert {each.item() for name, each in state.items() if name.endswith(".step")} == {4.0}
    assert all(torch.isfinite(each).all() for each in state.values())
    observer = CancelAfter()
    done = train(config(tmp_path, cache, "lion", resume="latest"), observer)
    assert "The state of adamw8bit means nothing to lion, which begins anew." in observer.said()
    names = {name.rpartition(".")[2] for name in last_state(done) if "optimizer." in name}
    assert names == {"exp_avg"}
