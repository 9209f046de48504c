"""Whole runs with moments in 8 bits, and with another optimizer from a resume on."""

import pytest
from runs import metrics, run_config

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


@pytest.mark.exhaustive
def test_a_run_learns_as_with_moments_in_fp32(tmp_path, cache):
    packed, plain = (train(config(tmp_path / name, cache, name)) for name in ("adamw8bit", "adamw"))
    losses = [[line["loss"] for line in metrics(run.folder)] for run in (packed, plain)]
    assert losses[0][0] == losses[1][0]
    assert losses[0] != losses[1]
    # The same draws: the difference is that of the optimizer.
    assert abs(sum(losses[0]) - sum(losses[1])) < 1e-3 * sum(losses[1])
