"""Every goal and quality gives a run file, with sources for its figures and reasons for people."""

import itertools
import math
import re
from typing import get_args

import pytest
import torch

from tests.fixtures.combinations import rarely
from tests.fixtures.tables import table
from trainer_core.config.adapter import AdapterKind
from trainer_core.config.dataset import DatasetSection
from trainer_core.errors import ConfigError
from trainer_core.families.graph_model_denoiser import GRAPH_MODEL
from trainer_core.families.presets import (
    CLIP_GOALS,
    GOALS,
    QUALITIES,
    Preset,
    plan_preset,
    variants_of,
)
from trainer_core.families.registry import PACKAGES, embedded_family, get_family
from trainer_core.families.run_files import config_of, template_config
from trainer_core.weights.base_location import BaseLocation

TINY = embedded_family().name
BASES = [*((name, False) for name in PACKAGES), (TINY, True)]
VARIANTS = [(family, variant) for family in PACKAGES for variant in variants_of(family)]
KINDS = ("auto", *get_args(AdapterKind))


def preset(goal: str = "person", quality: str = "standard", family: str = TINY, **more) -> Preset:
    return plan_preset(family, goal, quality, **{"images": 20, **more})


def goals_of(family: str) -> list[str]:
    """The goals that a family has a base for."""
    edits = any(variant != "generate" for variant in variants_of(family))
    return [goal for goal in GOALS if edits or goal != "edit"]


@pytest.mark.parametrize(("family", "embedded"), [*BASES[-2:], *rarely(BASES[:-2])])
def test_every_combination_is_a_run_file_with_reasons(family, embedded, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for goal, quality, kind in itertools.product(goals_of(family), QUALITIES, KINDS):
        found = preset(goal, quality, family, kind=kind, embedded=embedded)
        config = config_of(found.values)
        assert kind in {"auto", config.adapter.kind}
        assert (config.base.path == "embedded") == embedded
        assert 5 <= len(found.chosen) <= 8
        for chosen in found.chosen:
            assert chosen.value == found.values[chosen.setting]
            assert re.fullmatch(r"[A-Z0-9][^{}\n]{20,150}\.", chosen.why), chosen


@pytest.mark.parametrize(("family", "variant"), VARIANTS)
def test_a_run_sees_weak_and_strong_noise_at_every_size(family, variant):
    """2 % of the levels lie below 0.3, where fine detail is learned; 60 % at most above 0.8."""
    folder = get_family(family).files.single_file.configs / variant
    location = BaseLocation(folder, folder, variant, 512, "x", False, None)
    for goal, side in itertools.product(GOALS, (256, 512, 640, 768, 1024, 1536, 2048)):
        if (goal == "edit") != (variant == "generate"):
            config = config_of(preset(goal, family=family, variant=variant).values)
            sigma, shift = config.training.sigma, 1.0
            assert (sigma.mean, sigma.std, sigma.shift, sigma.min, sigma.max) == (0, 1, None, 0, 1)
            if sigma.density == "shifted":
                shift = get_family(family).training_shift(location, side, side)
            levels = torch.tensor([0.3, 0.8], dtype=torch.float64)
            below = torch.special.ndtr(levels.logit() - math.log(shift))
            assert below[0] >= 0.02, (goal, side, shift)
            assert 1 - below[1] <= 0.6, (goal, side, shift)


def test_presets_are_what_people_train_with():
    """The bounds of the research that compared six trainers; see the sources of each figure."""
    for family, variant in VARIANTS:
        for goal, quality in itertools.product(GOALS, QUALITIES):
            if (goal == "edit") == (variant == "generate"):
                continue
            found = preset(goal, quality, family, variant=variant)
            config = config_of(found.values)
            assert config.adapter.alpha in {None, config.adapter.rank}
            assert config.adapter.rank in {16, 32}
            assert 1e-4 <= config.training.optimizer.learning_rate <= 2e-4
            assert config.dataset.caption_dropout == (0.05 if goal == "style" else 0.0)
            kept = goal in {"person", "object"} and quality != "fast"
            assert config.dataset.preservation.share == (0.2 if kept else 0.0)
            assert config.output.dtype == "bf16"
            for images, most in ((10, 220), (20, 160), (40, 110), (1000, 9)):
                own = preset(goal, quality, family, variant=variant, images=images).values
                views = own["training.steps"] * (1 - config.dataset.preservation.share) / images
                assert 0.3 * most / 3 <= views <= most * 1.5, (family, goal, quality, images)


@pytest.mark.parametrize("goal", [*GOALS[:3], *CLIP_GOALS])
def test_a_goal_of_clips_is_its_own(goal):
    """Each changes what is trained: the time that a step shows, its size, or what it holds."""
    clips = {"family": GRAPH_MODEL, "traits": {"flow", "clips"}}
    values = preset(goal, **clips).values
    others = [preset(each, **clips).values for each in (*GOALS[:3], *CLIP_GOALS) if each != goal]
    assert values not in others
    assert (
        values["dataset.resolution"]
        == values["preview.width"]
        == (256 if goal == "motion" else 384)
    )
    # As many tokens of Wan: long and small, or short and large.
    sides = values["dataset.resolution"] // 16
    frames = values.get("dataset.frames", DatasetSection.model_fields["frames"].default)
    assert 5000 < sides**2 * ((frames - 1) // 4 + 1) < 5500


@pytest.mark.parametrize("goal", CLIP_GOALS)
def test_a_goal_of_clips_asks_for_clips(goal):
    for family, traits in ((TINY, ()), (GRAPH_MODEL, {"flow"})):
        with pytest.raises(ConfigError, match="no clip") as caught:
            preset(goal, family=family, traits=traits)
        assert "person" in caught.value.remedy


def test_the_embedded_base_is_trained_as_its_template_says():
    """All but what docs/learning.md measured since: the factor, and how the base is held."""
    values = {**preset("object", embedded=True).values, "training.steps": None}
    old = {"adapter.factor": 4, "dataset.preservation.share": 0.5, "dataset.preservation.count": 24}
    assert [values[key] for key in old] == [2, 0.25, 72]
    ours = config_of({**values, **old})
    template = template_config(TINY, "tiny")
    assert ours.adapter == template.adapter
    assert ours.training == template.training
    assert ours.dataset == template.dataset
    assert ours.memory == template.memory
    assert ours.preview == template.preview


WRONG = table(__file__, "wrong_words")


@pytest.mark.parametrize(("wrong", "near"), WRONG)
def test_a_wrong_word_is_refused_with_the_nearest(wrong, near):
    with pytest.raises(ConfigError) as caught:
        preset(**wrong)
    assert near in caught.value.remedy
    assert caught.value.found
    assert caught.value.expected
