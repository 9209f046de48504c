"""Runs with other losses, weightings and noise: resumed, in two processes, and other than plain."""

import torch
from runs import metrics, run_config, tensors

from trainer_core.training import train


def test_each_setting_trains_other_weights(tmp_path, cache):
    """And all begin at the same noise level."""
    base = {"steps": 1, "gradient_accumulation_steps": 1}
    plain = train(run_config(tmp_path / "plain", cache, training=base))
    expected, told = tensors(plain.adapters[0]), metrics(plain.folder)
    for number, changes in enumerate(
        [
            {"loss": {"kind": "huber"}},
            {"loss": {"weighting": "cosmap"}},
            {"loss": {"noise_offset": 0.1}},
            {"noises_per_latent": 2},
        ]
    ):
        result = train(run_config(tmp_path / str(number), cache, training=base | changes))
        found = tensors(result.adapters[0])
        assert any(not torch.equal(found[key], expected[key]) for key in expected), changes
        lines = metrics(result.folder)
        assert [line["epoch"] for line in lines] == [line["epoch"] for line in told]
        # The two noises of a latent share one level.
        assert [line["sigma_mean"] for line in lines] == [line["sigma_mean"] for line in told]
