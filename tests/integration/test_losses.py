"""Runs with other losses, weightings and noise: resumed, in two processes, and other than plain."""

from __future__ import annotations

import pytest
import torch
import yaml
from launches import launch_two
from runs import CancelAfter, metrics, run_config, tensors
from test_processes import BEGIN, TRAIN
from test_resume import assert_equal_runs

from trainer_core.training import train

LEARNED = {
    "steps": 4,
    "gradient_accumulation_steps": 1,
    "batch_size": 4,
    "noises_per_latent": 2,
    "loss": {"weighting": "learned", "noise_offset": 0.1, "differential_guidance": 2.0},
}
HUBER = {
    "steps": 4,
    "loss": {"kind": "huber", "huber_schedule": "sigma", "weighting": "min_snr"},
}


@pytest.mark.parametrize(
    "training",
    [LEARNED, pytest.param(HUBER, marks=pytest.mark.exhaustive)],
    ids=["learned", "huber"],
)
def test_resumed_run_equals_the_uninterrupted_one_bit_for_bit(tmp_path, cache, training):
    preservation = {"share": 0.25, "count": 1, "steps": 1, "prompts": ["a red circle"]}
    settings = {"training": training, "dataset": {"preservation": preservation}}
    whole = train(run_config(tmp_path / "a", cache, **settings))
    stopped = train(run_config(tmp_path / "b", cache, **settings), CancelAfter(2))
    assert (stopped.status, stopped.step) == ("cancelled", 2)
    resumed = train(run_config(tmp_path / "b", cache, **settings, resume="latest"))
    assert (resumed.status, resumed.step) == ("done", 4)
    assert_equal_runs(whole.folder, resumed.folder, 4)
    kept = tensors(whole.folder / "checkpoints" / "000004" / "training_state.safetensors")
    learned = {name for name in kept if name.startswith("learned_weight.")}
    assert bool(learned) == (training is LEARNED)
    # 3 of 4 samples of a step are images, each with two noises.
    if learned:
        assert 0 < float(kept["learned_weight.counts"].sum()) <= 4 * 3 * 2


def test_a_weighting_may_begin_at_a_resume_and_is_said(tmp_path, cache):
    short = {"training": {"steps": 1, "gradient_accumulation_steps": 1}}
    train(run_config(tmp_path, cache, **short))
    changed = {"training": {**short["training"], "steps": 2, "loss": {"weighting": "learned"}}}
    observer = CancelAfter(99)
    result = train(run_config(tmp_path, cache, **changed, resume="latest"), observer)
    assert (result.status, result.step) == ("done", 2)
    said = " ".join(map(str, observer.events))
    assert "training.loss.weighting was 'none' and is 'learned'" in said


def test_each_setting_trains_other_weights(tmp_path, cache):
    """And those that only measure otherwise begin at the same noise."""
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
        same = [line["sigma_mean"] for line in lines] == [line["sigma_mean"] for line in told]
        assert same == ("loss" in changes)


@pytest.mark.slow
@pytest.mark.exhaustive
def test_two_gloo_processes_train_the_weights_of_one(tmp_path, cache):
    training = {**LEARNED, "steps": 5, "batch_size": 2, "gradient_accumulation_steps": 2}
    config = run_config(tmp_path / "two", cache, training=training)
    run_file = tmp_path / "run.yaml"
    run_file.write_text(yaml.safe_dump(config.model_dump(mode="json")))
    ends = tmp_path / "ends"
    ends.mkdir()
    done = launch_two(tmp_path, BEGIN + TRAIN, run_file, ends)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-4000:]
    one = train(run_config(tmp_path / "one", cache, training=training))
    two = tmp_path / "two" / "run" / "v0"
    last = "checkpoints/000005/training_state.safetensors"
    expected, found = tensors(one.folder / last), tensors(two / last)
    for name in ("counts", "shares"):
        assert torch.equal(found[f"learned_weight.{name}"], expected[f"learned_weight.{name}"])
    torch.testing.assert_close(
        found["learned_weight.sums"], expected["learned_weight.sums"], rtol=1e-4, atol=0
    )
    for a, b in zip(metrics(two), metrics(one.folder), strict=True):
        assert a["sigma_mean"] == pytest.approx(b["sigma_mean"], rel=1e-12)
        assert a["loss"] == pytest.approx(b["loss"], rel=1e-4)
