"""Whole runs at other noise levels and with other schedules."""

from statistics import mean

import pytest
import torch
from runs import CancelAfter, metrics, run_config, tensors

from trainer_core.training import train


def same_weights(one, other):
    ours, theirs = (tensors(result.adapters[0]) for result in (one, other))
    return all(torch.equal(ours[name], theirs[name]) for name in ours.keys() | theirs.keys())


def config(folder, cache, **overrides):
    return run_config(folder, cache, **overrides)


SIGMA = {"density": "beta", "alpha": 2.0, "beta": 3.0, "stratified": True}


def training(**changes):
    schedule = {"name": "one_cycle", "warmup_steps": 0}
    return {"steps": 6, "sigma": SIGMA, "schedule": schedule, **changes}


def test_stratified_steps_are_the_same_however_they_are_cut_and_after_a_resume(tmp_path, cache):
    whole = train(config(tmp_path / "whole", cache, training=training()))
    steps = metrics(whole.folder)
    assert mean(each["sigma_mean"] for each in steps) == pytest.approx(0.4, abs=0.05)
    cut = training(batch_size=1, gradient_accumulation_steps=4)
    other = metrics(train(config(tmp_path / "cut", cache, training=cut)).folder)
    assert [e["sigma_mean"] for e in steps] == pytest.approx([e["sigma_mean"] for e in other])
    train(config(tmp_path / "parts", cache, training=training()), CancelAfter(3))
    parts = train(config(tmp_path / "parts", cache, training=training(), resume="latest"))
    assert same_weights(whole, parts)


def test_auto_is_the_familys_density_and_is_told(tmp_path, cache):
    runs = [
        train(config(tmp_path / name, cache, training={"steps": 2, "sigma": {"density": name}}))
        for name in ("auto", "shifted")
    ]
    assert same_weights(*runs)
    assert "density: shifted" in (runs[0].folder / "run.yaml").read_text(encoding="utf-8")
