"""Settings of the loss out of range or against another: one message each."""

from __future__ import annotations

import pytest

from trainer_core.config import RunConfig
from trainer_core.config.problems import contradictions
from trainer_core.config.reading import load_config
from trainer_core.errors import ConfigError

HUBER = {"kind": "huber"}


def training(**loss):
    return {"training": {"loss": loss}}


AGAINST = [
    (training(huber_delta=0.2), "training.loss.huber_delta"),
    (training(kind="mae", huber_delta=0.2), "training.loss.huber_delta"),
    (training(huber_schedule="sigma"), "training.loss.huber_schedule"),
    (training(**HUBER, huber_schedule="sigma", huber_delta=1.0), "huber_delta is 1.0"),
    (training(**HUBER, huber_schedule="sigma", huber_delta=3.0), "huber_delta is 3.0"),
    (training(snr_gamma=4.0), "training.loss.snr_gamma"),
    (training(weighting="cosmap", snr_gamma=4.0), "weighting is cosmap"),
    (training(**HUBER, weighting="learned"), "training.loss.weighting is learned"),
    (training(kind="mae", weighting="learned"), "training.loss.kind is mae"),
    (training(kind="mae", differential_guidance=3.0), "differential_guidance is 3.0"),
]


@pytest.mark.parametrize(("values", "named"), AGAINST)
def test_a_contradiction_is_told_once_with_its_setting(values, named):
    config = RunConfig.model_validate(values)
    found = contradictions(config)
    assert len(found) == 1
    assert named in found[0].found
    assert found[0].expected
    assert found[0].remedy


@pytest.mark.parametrize(
    "values",
    [
        training(**HUBER, huber_delta=0.2, huber_schedule="sigma"),
        training(**HUBER, huber_delta=3.0),
        training(**HUBER, differential_guidance=3.0, weighting="cosmap"),
        training(kind="mae", weighting="sigma_sqrt", noise_offset=0.1),
        training(weighting="min_snr", snr_gamma=1.0),
        training(weighting="learned", differential_guidance=2.0),
        training(weighting="logit_normal"),
        {"training": {"noises_per_latent": 4}},
    ],
)
def test_settings_that_agree_pass(values):
    assert contradictions(RunConfig.model_validate(values)) == []


OUT_OF_RANGE = [
    ("training.loss.kind", "l2", "'mse', 'huber', 'mae'"),
    ("training.loss.huber_delta", 0.0, "above 0"),
    ("training.loss.huber_delta", 101.0, "at most 100"),
    ("training.loss.huber_schedule", "snr", "'constant', 'sigma'"),
    ("training.loss.weighting", "mode", "'none', 'sigma_sqrt'"),
    ("training.loss.snr_gamma", 0.0, "above 0"),
    ("training.loss.snr_gamma", 1001.0, "at most 1000"),
    ("training.loss.differential_guidance", 0.5, "at least 1"),
    ("training.loss.differential_guidance", 21.0, "at most 20"),
    ("training.loss.noise_offset", -0.1, "at least 0"),
    ("training.loss.noise_offset", 1.5, "at most 1"),
    ("training.noises_per_latent", 0, "at least 1"),
    ("training.noises_per_latent", 65, "at most 64"),
]


@pytest.mark.parametrize(("setting", "value", "expected"), OUT_OF_RANGE)
def test_what_is_out_of_range_is_told_with_its_path_and_range(setting, value, expected):
    values = value
    for name in reversed(setting.split(".")):
        values = {name: values}
    with pytest.raises(ConfigError) as error:
        load_config(values)
    assert setting in error.value.found
    assert expected in error.value.expected
    assert error.value.remedy
