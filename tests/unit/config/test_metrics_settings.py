"""Every setting of ``metrics`` out of its range, one message each."""

import pytest

from trainer_core.errors import ConfigError
from trainer_core.families.run_files import load_config


@pytest.mark.parametrize(
    ("text", "found", "expected"),
    [
        ("sigma_bands: 0", "metrics.sigma_bands is 0", "at least 1"),
        ("sigma_bands: 21", "metrics.sigma_bands is 21", "at most 20"),
        ("sigma_bands: 2.5", "metrics.sigma_bands is 2.5", "a whole number"),
        ("norms_every: -1", "metrics.norms_every is -1", "at least 0"),
        ("norms_every: often", "metrics.norms_every is often", "a whole number"),
        ("trackers: wandb", "metrics.trackers is wandb", "a list"),
        ("trackers: [mlflow]", "metrics.trackers (at 0) is mlflow", "one of 'tensorboard'"),
    ],
)
def test_what_is_out_of_range_is_told_by_its_path(tmp_path, text, found, expected):
    path = tmp_path / "run.yaml"
    path.write_text(f"metrics: {{{text}}}\n")
    with pytest.raises(ConfigError) as refused:
        load_config(path)
    assert found in str(refused.value)
    assert expected in refused.value.expected
