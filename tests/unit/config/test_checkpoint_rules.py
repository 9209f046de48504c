"""Settings of checkpoints and early stop that contradict each other, one message each."""

from __future__ import annotations

import pytest

from trainer_core.config import RunConfig
from trainer_core.config.problems import contradictions


def problems(values):
    values = {**values, "dataset": {"path": "x", **values.get("dataset", {})}}
    return contradictions(RunConfig.model_validate(values))


HELD = {"validation": {"share": 0.1}}


@pytest.mark.parametrize(
    ("values", "named"),
    [
        ({"training": {"early_stop": 3}}, "training.early_stop"),
        (
            {"training": {"early_stop": 3}, "dataset": {"folders": [{"path": "a"}]}},
            "dataset.validation.share",
        ),
        ({"training": {"keep_every": 300}}, "training.keep_every"),
        ({"training": {"keep_every": 100, "checkpoint_every": 0}}, "training.checkpoint_every"),
    ],
)
def test_what_contradicts_is_told_in_three_parts(values, named):
    (problem,) = problems(values)
    assert named in f"{problem.found} {problem.remedy}"
    assert problem.expected


@pytest.mark.parametrize(
    "values",
    [
        {"training": {"early_stop": 3}, "dataset": HELD},
        {
            "training": {"early_stop": 3},
            "dataset": {"folders": [{"path": "a", "role": "validation"}]},
        },
        {"training": {"keep_every": 500}},
        {"training": {"keep_every": 30, "checkpoint_every": 10}},
        {"training": {"checkpoint_minutes": 5.0, "checkpoint_every": 0}},
        {"resume": "best"},
    ],
)
def test_what_fits_is_taken(values):
    assert not problems(values)


@pytest.mark.parametrize(
    ("setting", "value"),
    [
        ("checkpoint_minutes", -1.0),
        ("checkpoint_minutes", 10001.0),
        ("keep_every", -1),
        ("early_stop", -1),
        ("early_stop", 10001),
        ("keep_checkpoints", 0),
        ("checkpoint_every", -1),
    ],
)
def test_a_setting_out_of_range_is_refused(setting, value):
    with pytest.raises(ValueError, match=setting):
        RunConfig.model_validate({"training": {setting: value}})
