"""What contradicts a trained text encoder: a line each."""

from __future__ import annotations

import pytest

from trainer_core.config import RunConfig
from trainer_core.config.problems import contradictions

_PLACE = "training.text_encoder"


def run(text, **others):
    training = {"text_encoder": text, **others.pop("training", {})}
    return {"training": training, **others}


TRAIN = {"train": True}
REFUSED = [
    (run({"rank": 4}), f"{_PLACE}.rank is 4 and {_PLACE}.train is false"),
    (run({"learning_rate": 1e-5}), f"{_PLACE}.learning_rate is 1e-05 and {_PLACE}.train is false"),
    (
        run(TRAIN, training={"optimizer": {"name": "prodigy"}}),
        f"{_PLACE}.train is true and training.optimizer.name is prodigy",
    ),
    (
        run(
            {"train": True, "learning_rate": 1e-5},
            training={"optimizer": {"name": "prodigy_schedule_free"}},
        ),
        f"{_PLACE}.learning_rate is 1e-05 and training.optimizer.name is prodigy_schedule_free",
    ),
    (
        run(TRAIN, output={"layouts": ["comfyui", "peft"]}),
        f"{_PLACE}.train is true and output.layouts has peft",
    ),
    (
        run(TRAIN, adapter={"kind": "lora", "dora": True, "dora_axis": "output"}),
        f"{_PLACE}.train is true and adapter.dora_axis is output",
    ),
    (
        run(TRAIN, output={"layouts": ["lycoris"]}),
        f"{_PLACE}.train is true and output.layouts has lycoris",
    ),
]
ALLOWED = [
    run({}),
    run({"train": True, "learning_rate": 1e-5, "rank": 4}),
    run({"train": True, "learning_rate": 0.1}, training={"optimizer": {"name": "came"}}),
    run(TRAIN, output={"layouts": ["comfyui", "kohya", "diffusers"]}),
    run(TRAIN, training={"optimizer": {"name": "prodigy_schedule_free"}}),
]


@pytest.mark.parametrize(("values", "found"), REFUSED)
def test_what_contradicts_is_told_in_three_parts(values, found):
    problems = list(contradictions(RunConfig.model_validate(values)))
    mine = [each for each in problems if each.found == found]
    assert len(mine) == 1, problems
    assert mine[0].expected
    assert mine[0].remedy


@pytest.mark.parametrize("values", ALLOWED)
def test_what_fits_is_not_refused(values):
    problems = contradictions(RunConfig.model_validate(values))
    assert [each for each in problems if _PLACE in each.found] == []
