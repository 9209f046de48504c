"""Every goal and quality gives a run file, with sources for its figures and reasons for people."""

from __future__ import annotations

import itertools
import re
from typing import get_args

import pytest
from architecture.source import ROOT

from tests.fixtures.tables import table
from trainer_core.config.adapter import AdapterKind
from trainer_core.config.defaults import resolved_length
from trainer_core.config.presets import FOLDER, PLAN, read_layers
from trainer_core.config.run import find_setting
from trainer_core.config.section import section_of
from trainer_core.errors import ConfigError
from trainer_core.families.presets import GOALS, QUALITIES, Preset, plan_preset, variants_of
from trainer_core.families.registry import PACKAGES, embedded_family
from trainer_core.families.run_files import (
    config_of,
    load_config,
    run_file_of,
    template_config,
    templates,
)

TINY = embedded_family().name
BASES = [*((name, False) for name in PACKAGES), (TINY, True)]
KINDS = ("auto", *get_args(AdapterKind))
GIGABYTE = 1 << 30
GENERAL = [FOLDER / f"{name}.yaml" for name in ("defaults", "goals", "qualities", "kinds")]
FILES = [*GENERAL, FOLDER / "graph_model.yaml", *ROOT.glob("trainer_core/families/*/presets.yaml")]


def preset(goal: str = "person", quality: str = "standard", family: str = TINY, **more) -> Preset:
    return plan_preset(family, goal, quality, **{"images": 20, **more})


def goals_of(family: str) -> list[str]:
    """The goals that a family has a base for."""
    edits = any(variant != "generate" for variant in variants_of(family))
    return [goal for goal in GOALS if edits or goal != "edit"]


@pytest.mark.parametrize("path", FILES, ids=lambda path: f"{path.parent.name}-{path.stem}")
def test_a_figure_is_of_a_setting_and_has_a_source(path):
    for name, layer in read_layers(path).items():
        for key, figure in layer.items():
            field = find_setting(key)
            known = key in PLAN or (field is not None and section_of(field) is None)
            assert known, f"{name}: {key}"
            assert figure.source, f"{name}: {key}"


def test_a_family_without_an_edit_base_says_so():
    families = [family for family in PACKAGES if goals_of(family) != list(GOALS)]
    for family in families:
        with pytest.raises(ConfigError, match="generates from text alone") as caught:
            preset("edit", family=family)
        assert caught.value.expected == "a base of another family for this goal"
    assert families


@pytest.mark.parametrize(("family", "embedded"), BASES)
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


@pytest.mark.parametrize(("family", "embedded"), BASES)
def test_a_run_file_is_read_back_as_it_was_meant(family, embedded, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "run.yaml"
    for goal in goals_of(family):
        found = preset(goal, family=family, embedded=embedded)
        notes = [each.why for each in found.chosen]
        text = run_file_of("A title.", found.values, notes)
        path.write_text(text, encoding="utf-8")
        assert load_config(path) == config_of(found.values)
        assert f"\n# - {notes[0]}\n" in text
        assert max(map(len, text.splitlines())) <= 100


@pytest.mark.parametrize(("family", "variant"), [(f, v) for f in PACKAGES for v in variants_of(f)])
def test_a_variant_has_its_base_and_its_own_goals(family, variant):
    for goal in GOALS:
        if (goal == "edit") == (variant == "generate"):
            with pytest.raises(ConfigError, match=variant) as caught:
                preset(goal, family=family, variant=variant)
            assert caught.value.remedy
            continue
        values = preset(goal, family=family, variant=variant).values
        assert values["base.variant"] == variant
        purposes = {"generate", "edit", variant} & set(templates()[family])
        assert values["base.path"] in {template_config(family, e).base.path for e in purposes}


@pytest.mark.parametrize(("family", "embedded"), BASES)
@pytest.mark.parametrize("images", [5, 12, 500])
def test_a_better_quality_takes_longer_and_a_larger_set_too(family, embedded, images):
    for goal in goals_of(family):
        steps = [
            preset(goal, quality, family, images=number, embedded=embedded).values["training.steps"]
            for quality in QUALITIES
            for number in (images, 2 * images)
        ]
        assert steps[0] < steps[2] < steps[4]
        assert steps[0] < steps[1]
        assert steps[2] < steps[3]


@pytest.mark.parametrize("images", [12, 20, 400])
def test_standard_is_as_long_as_a_run_that_chooses_its_own_length(images):
    for embedded, goal in ((False, "person"), (False, "object"), (True, "object")):
        config = config_of(preset(goal, images=images, embedded=embedded).values)
        free = config.model_copy(
            update={"training": config.training.model_copy(update={"steps": None})}
        )
        assert resolved_length(free, images).training.steps == config.training.steps


def test_less_memory_means_smaller_images_and_says_so():
    sizes = {}
    for gigabytes in (6, 8, 12, 16, 24, 48, None):
        vram = None if gigabytes is None else gigabytes * GIGABYTE
        found = preset(quality="thorough", vram=vram)
        sizes[gigabytes] = found.values["dataset.resolution"]
        why = next(each.why for each in found.chosen if each.setting == "dataset.resolution")
        assert (f"{gigabytes} GB" in why) == (sizes[gigabytes] < 1024)
    assert sizes == {6: 512, 8: 512, 12: 768, 16: 1024, 24: 1024, 48: 1024, None: 1024}
    assert preset(quality="fast", vram=80 * GIGABYTE).values["dataset.resolution"] == 512
    assert preset(quality="fast", embedded=True, vram=0).values["dataset.resolution"] == 64


def test_the_embedded_base_is_trained_as_its_template_says():
    ours = config_of({**preset("object", embedded=True).values, "training.steps": None})
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


def test_a_file_that_holds_no_figures_is_refused(tmp_path):
    path = tmp_path / "presets.yaml"
    for text in ("a: {training.steps: 5}", "a: {training.steps: {value: 5}}", "- a", "a: 5"):
        path.write_text(text, encoding="utf-8")
        with pytest.raises(ConfigError, match="cannot be read as presets"):
            read_layers(path)
