"""Settings of the optimizer: each one's own defaults, bounds and contradictions."""

from __future__ import annotations

from typing import get_args

import pytest
from pydantic import ValidationError

from trainer_core.config import OptimizerSection, RunConfig
from trainer_core.config.optimizer import OptimizerName
from trainer_core.config.optimizer_facts import BY_OPTIMIZER, OWN_DEFAULTS, UNREAD
from trainer_core.config.problems import check_config, contradictions
from trainer_core.config.reading import load_config
from trainer_core.errors import ConfigError

NAMES = get_args(OptimizerName)
FREE = "adamw_schedule_free"


def run(optimizer, **others):
    training = {"optimizer": optimizer} | others.pop("training", {})
    return RunConfig.model_validate({"training": training} | others)


CONTRADICTIONS = [
    (run({"rate_pattern": {"(": 2.0}}), "rate_pattern"),
    (run({"rate_pattern": {"a{99999999999}": 2.0}}), "rate_pattern"),
    (run({"rate_pattern": {"a": -2.0}}), "rate_pattern"),
    (run({"rate_pattern": {"a": 0.0}}), "rate_pattern"),
    (run({"decay_pattern": {"(": 2.0}}), "decay_pattern"),
    (run({"decay_pattern": {"a": -0.5}}), "decay_pattern"),
    (run({"decay_pattern": {"a": 2.0}, "weight_decay": 0.0}), "decay_pattern"),
    (run({"lora_plus_ratio": 4.0}), "lora_plus_ratio"),
    (run({"magnitude_ratio": 0.5}), "magnitude_ratio"),
    (run({"name": "prodigy", "learning_rate": 1e-4}), "learning_rate is 0.0001"),
    (run({"name": "prodigy_schedule_free", "learning_rate": 1e-3}), "learning_rate is 0.001"),
    (run({"name": "prodigy", "rate_pattern": {"a": 2.0}}), "rate_pattern"),
    (
        run({"name": "prodigy", "lora_plus_ratio": 2.0}, adapter={"kind": "lora"}),
        "lora_plus_ratio",
    ),
    (
        run({"name": "prodigy", "magnitude_ratio": 2.0}, adapter={"kind": "lora", "dora": True}),
        "magnitude_ratio",
    ),
    (run({"name": FREE}, training={"schedule": {"name": "cosine"}}), "training.schedule.name"),
    (run({"name": FREE}, training={"ema": {"decay": 0.9}}), "training.ema.decay"),
    (run({"name": FREE, "beta1": 0.0}), "beta1"),
    *((run({"name": name, key: 0.5}), key) for name, keys in UNREAD.items() for key in keys),
]


@pytest.mark.parametrize(("config", "named"), CONTRADICTIONS)
def test_contradiction_is_named(config, named):
    (found,) = contradictions(config)
    assert f"training.optimizer.{named}" in found.found or named in found.found
    assert found.expected
    assert found.remedy
    with pytest.raises(ConfigError):
        check_config(config)


@pytest.mark.parametrize(
    "config",
    [
        *(run({"name": name}) for name in NAMES),
        run({"lora_plus_ratio": 4.0}, adapter={"kind": "lora"}),
        run({"magnitude_ratio": 0.5}, adapter={"kind": "lora", "dora": True}),
        run({"rate_pattern": {r".*\.to_q": 0.5}, "decay_pattern": {r".*\.to_k": 0.0}}),
        run({"name": "prodigy_schedule_free", "rate_pattern": {"a": 2.0}}),
        run({"name": FREE}, training={"schedule": {"warmup_steps": 5}}),
        run({"name": "prodigy", "learning_rate": 0.5}),
    ],
)
def test_settings_that_agree_pass(config):
    assert contradictions(config) == []


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("name", "adam"),
        ("learning_rate", 0.0),
        ("learning_rate", 11.0),
        ("beta1", 1.0),
        ("beta1", -0.1),
        ("beta2", 1.0),
        ("eps", 0.0),
        ("eps", 2.0),
        ("weight_decay", -0.1),
        ("weight_decay", 2.0),
        ("lora_plus_ratio", 0.5),
        ("lora_plus_ratio", 1001.0),
        ("magnitude_ratio", 0.0),
        ("magnitude_ratio", 1001.0),
        ("rate_pattern", {"a": "b"}),
        ("decay_pattern", 3),
    ],
)
def test_a_value_out_of_range_is_one_message(name, value):
    with pytest.raises(ValidationError) as error:
        OptimizerSection.model_validate({name: value})
    assert error.value.error_count() == 1
    with pytest.raises(ConfigError, match=f"training.optimizer.{name}"):
        load_config({"training": {"optimizer": {name: value}}})


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
