"""Averages and limits that contradict the rest of the run file: a line each."""

from __future__ import annotations

import pytest

from trainer_core.config import RunConfig
from trainer_core.config.problems import contradictions


def training(**values):
    return {"training": values}


REFUSED = [
    (training(ema={"previews": "last"}), "training.ema.decay"),
    (training(ema={"export": "both"}), "training.ema.decay"),
    (training(ema={"export": "last", "post_hoc": True}), "training.ema.decay"),
    (
        training(ema={"decay": 0.9}, optimizer={"name": "adamw_schedule_free"}),
        "training.ema.decay",
    ),
    (
        training(ema={"post_hoc": True}, optimizer={"name": "prodigy_schedule_free"}),
        "training.ema.post_hoc",
    ),
    (
        {**training(max_weight_norm=0.5), "adapter": {"kind": "oft"}},
        "training.max_weight_norm",
    ),
    (
        {**training(max_weight_norm=0.5), "adapter": {"kind": "lora", "init": "pissa"}},
        "adapter.init",
    ),
    (
        {**training(max_weight_norm=0.5), "adapter": {"kind": "lora", "init": "olora"}},
        "adapter.init",
    ),
]

REFUSED += [
    (
        training(max_weight_norm=0.5, optimizer={"name": "adamw_schedule_free"}),
        "training.max_weight_norm",
    ),
]

ALLOWED = [
    training(ema={"decay": 0.9, "previews": "last", "export": "both"}),
    training(ema={"post_hoc": True}),
    {**training(max_weight_norm=0.5), "adapter": {"kind": "lora", "init": "eva"}},
    {**training(ema={"decay": 0.9}), "adapter": {"kind": "oft", "rank": 4}},
]

OUT_OF_RANGE = [
    ("training.ema.decay", -0.1),
    ("training.ema.decay", 1.0),
    ("training.ema.previews", "both"),
    ("training.ema.export", "none"),
    ("training.ema.post_hoc", "often"),
    ("training.max_weight_norm", -1.0),
    ("training.max_weight_norm", 101.0),
]


def of_averages(values):
    found = contradictions(RunConfig.model_validate(values))
    return [each for each in found if "ema" in each.found or "max_weight_norm" in each.found]


@pytest.mark.parametrize(("values", "named"), REFUSED)
def test_a_contradiction_is_refused_with_the_setting(values, named):
    (problem,) = of_averages(values)
    assert named in f"{problem.found} {problem.remedy}"
    assert problem.expected


@pytest.mark.parametrize("values", ALLOWED)
def test_what_goes_together_is_not(values):
    assert of_averages(values) == []


@pytest.mark.parametrize(("path", "value"), OUT_OF_RANGE)
def test_a_value_out_of_range_is_refused(path, value):
    for name in reversed(path.split(".")):
        value = {name: value}
    with pytest.raises(ValueError, match=path):
        RunConfig.model_validate(value)
