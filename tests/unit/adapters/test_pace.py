"""Defaults of every kind learn as fast as a LoRA, and settings that do not are told."""

import json
from pathlib import Path

import pytest
import torch
from torch import nn

from benchmarks.calibration import BAR, KINDS, SHARE, compare, synthetic
from trainer_core.adapters import AdapterConfig, attach
from trainer_core.adapters.parameter_groups import pace_notes
from trainer_core.config import OptimizerSection

COMMITTED = Path(__file__).parents[3] / "benchmarks" / "results" / "calibration.json"


@pytest.mark.parametrize("noise", [0.0, 1.7])
def test_defaults_keep_pace_with_a_lora(noise):
    others = {
        "slow": {"kind": "lokr", "factor": -1, "init": "lycoris"},
        "far": {"kind": "loha", "init": "lycoris"},
    }
    rows = list(compare(*synthetic((512, 512), noise), {**KINDS, **others}, (7, 8)))
    found = {row.adapter: row for row in rows}
    # At this width Adam's steps are small beside the initialization, so that the bar is wider here.
    for kind in KINDS:
        assert 0.5 < found[kind].along_ratio < 2
        assert 0.5 < found[kind].norm_ratio < 2
        assert found[kind].parameters_ratio <= SHARE
    assert found["slow"].along_ratio < 0.15
    assert found["far"].norm_ratio > 2


def test_committed_calibration_meets_the_bar_with_the_defaults():
    result = json.loads(COMMITTED.read_text(encoding="utf-8"))
    assert result["learning_rate"] == OptimizerSection().learning_rate
    rows = [row for row in result["rows"] if row["adapter"] in KINDS and not row["dora"]]
    gradients = {row["gradient"] for row in rows}
    assert len(rows) == len(KINDS) * len(gradients)
    assert "embedded base" in gradients
    for kind, settings in KINDS.items():
        now = AdapterConfig(**settings).model_dump(include={"rank", "alpha", "factor"})
        assert result["defaults"][kind] == now
    for row in rows:
        assert 1 / BAR <= row["along_ratio"] <= BAR, row
        assert 1 / BAR <= row["norm_ratio"] <= BAR, row
        assert row["parameters_ratio"] <= SHARE, row


def notes(rate, width=3072, **options):
    with torch.device("meta"):
        module = nn.Sequential(nn.Linear(width, width, bias=False))
    return " ".join(pace_notes(attach(module, AdapterConfig(**options)).plans, rate))


@pytest.mark.parametrize("kind", ["lora", "loha", "lokr"])
def test_defaults_are_told_nothing(kind):
    assert notes(1e-4, kind=kind) == ""
    assert notes(1e-2, width=128, kind=kind, factor=4, rank=16) == ""


@pytest.mark.parametrize(
    ("rate", "options", "words"),
    [
        (1e-6, {"kind": "lora"}, ("more slowly", "Raise the learning rate")),
        (1e-2, {"kind": "lora"}, ("times as far", "Lower the learning rate")),
        (1e-4, {"kind": "lokr", "factor": -1}, ("as few", "lower adapter.factor")),
        (1e-4, {"kind": "lokr", "factor": -1, "init": "lycoris"}, ("as few", "more slowly")),
        (1e-4, {"kind": "lokr", "factor": 1, "full_matrix": True}, ("as many",)),
        (1e-4, {"kind": "lora", "rank": 1}, ("as few", "Raise adapter.rank")),
    ],
)
def test_what_is_far_off_is_told_with_the_remedy(rate, options, words):
    said = notes(rate, **options)
    assert all(word in said for word in words), said
