"""Whole runs at other noise levels and with other schedules."""

from statistics import mean

import pytest
from runs import assert_same_files, metrics, run_config

from trainer_core.training import train

SIGMA = {"density": "beta", "alpha": 2.0, "beta": 3.0, "stratified": True}


def training(**changes):
    schedule = {"name": "one_cycle", "warmup_steps": 0}
    return {"steps": 6, "sigma": SIGMA, "schedule": schedule, **changes}


@pytest.mark.exhaustive
def test_stratified_steps_are_the_same_however_they_are_cut(tmp_path, cache):
    whole = train(run_config(tmp_path / "whole", cache, training=training()))
    steps = metrics(whole.folder)
    assert mean(each["sigma_mean"] for each in steps) == pytest.approx(0.4, abs=0.05)
    cut = training(batch_size=1, gradient_accumulation_steps=4)
    other = metrics(train(run_config(tmp_path / "cut", cache, training=cut)).folder)
    assert [e["sigma_mean"] for e in steps] == pytest.approx([e["sigma_mean"] for e in other])


def test_auto_is_the_familys_density_and_is_told(tmp_path, cache):
    runs = [
        train(run_config(tmp_path / name, cache, training={"steps": 2, "sigma": {"density": name}}))
        for name in ("auto", "shifted")
    ]
    assert_same_files(*(run.adapters for run in runs))
    assert "density: shifted" in (runs[0].folder / "run.yaml").read_text(encoding="utf-8")
