"""Settings of masks, crops and mirrored images that have no effect, or none that can be meant."""

from __future__ import annotations

import pytest

from trainer_core.config import RunConfig
from trainer_core.config.problems import contradictions


@pytest.mark.parametrize(
    ("dataset", "named"),
    [
        ({"mask": {"foreground": 0.0, "background": 0.0}}, "dataset.mask.foreground"),
        ({"crop": "mask", "mask": {"source": "none"}}, "dataset.crop"),
        ({"mask": {"source": "none", "invert": True}}, "dataset.mask.invert"),
        ({"flip": True, "flip_except": ["left", " "]}, "dataset.flip_except[1]"),
        ({"mask": {"foreground": 0.0}}, None),
        ({"mask": {"source": "none"}, "crop": "top"}, None),
        ({"mask": {"source": "alpha", "invert": True}, "crop": "mask"}, None),
        ({"flip": True, "flip_except": []}, None),
    ],
)
def test_contradictions_are_named_and_nothing_else_is(dataset, named):
    found = contradictions(RunConfig.model_validate({"dataset": {"path": "x", **dataset}}))
    assert [problem.found.split(" ")[0] for problem in found] == ([named] if named else [])
    assert all(problem.expected and problem.remedy for problem in found)
