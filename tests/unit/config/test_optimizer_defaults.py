"""Each optimizer's own defaults."""

from __future__ import annotations

from typing import get_args

import pytest

from trainer_core.config import OptimizerSection
from trainer_core.config.optimizer import OptimizerName
from trainer_core.config.optimizer_facts import BY_OPTIMIZER, OWN_DEFAULTS, UNREAD
from trainer_core.config.reading import load_config

NAMES = get_args(OptimizerName)


@pytest.mark.parametrize("name", NAMES)
def test_whoever_changes_the_name_alone_gets_what_suits_the_optimizer(name):
    plain = {key: getattr(OptimizerSection(), key) for key in BY_OPTIMIZER}
    found = OptimizerSection.model_validate({"name": name})
    expected = plain | dict(OWN_DEFAULTS.get(name, {}))
    assert {key: getattr(found, key) for key in BY_OPTIMIZER} == expected
    given = {"learning_rate": 0.5, "beta1": 0.5, "beta2": 0.5, "eps": 0.5, "weight_decay": 0.5}
    kept = OptimizerSection.model_validate({"name": name, **given})
    assert {key: getattr(kept, key) for key in BY_OPTIMIZER} == given
    assert OptimizerSection.model_validate(found.model_dump()) == found
    overridden = load_config({}, [f"training.optimizer.name={name}"])
    assert overridden.training.optimizer == found


def test_own_defaults_are_within_the_bounds_and_of_known_optimizers():
    assert set(OWN_DEFAULTS) | set(UNREAD) <= set(NAMES)
    for name, own in OWN_DEFAULTS.items():
        OptimizerSection.model_validate({"name": name, **own})
        assert set(own) <= set(BY_OPTIMIZER)
        # Else it would be no default of its own.
        assert all(getattr(OptimizerSection(), key) != value for key, value in own.items())
