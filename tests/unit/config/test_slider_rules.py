"""Settings of a concept slider that contradict each other: one message each."""

import pytest

from tests.fixtures.tables import table
from trainer_core.config import RunConfig
from trainer_core.config.run_file_problems import contradictions

ON = {"positive": "an old person", "negative": "a young person", "neutral": ["a person"]}


def config_of(slider, dataset=None, **sections):
    return RunConfig.model_validate({"dataset": {"slider": slider, **(dataset or {})}, **sections})


def rows(name, make):
    return [(named, make(values)) for named, values in table(__file__, name)]


@pytest.mark.parametrize(
    ("named", "config"), rows("slider_of_images", lambda values: config_of(ON, values))
)
def test_a_slider_has_nothing_of_a_folder(named, config):
    (problem,) = contradictions(config)
    assert problem.found.endswith(" and dataset.slider.positive is set")
    assert named in problem.found
    assert problem.expected
    assert "dataset." in problem.remedy


def test_a_slider_has_no_further_folders():
    found = contradictions(config_of(ON, {"folders": [{"path": "b"}]}))
    assert any("dataset.folders" in each.found and "slider" in each.found for each in found)


@pytest.mark.parametrize(("named", "config"), rows("slider_directions", config_of))
def test_prompts_without_a_direction_are_refused(named, config):
    (problem,) = contradictions(config)
    assert named in problem.found
    assert problem.expected
    assert "dataset.slider" in problem.remedy


@pytest.mark.parametrize(
    ("named", "config"), rows("slider_elsewhere", lambda values: config_of(ON, **values))
)
def test_what_a_slider_cannot_have_elsewhere(named, config):
    (problem,) = contradictions(config)
    assert named in problem.found


@pytest.mark.parametrize(
    ("slider", "triples"),
    [
        (
            {"positive": "old {}", "negative": "{}, young", "neutral": ["a", "b"]},
            (("a", "old a", "a, young"), ("b", "old b", "b, young")),
        ),
        ({"positive": "x", "neutral": ["a"]}, (("a", "x", "a"),)),
        ({"positive": "x", "negative": "y"}, (("", "x", "y"),)),
    ],
)
def test_a_place_in_a_prompt_is_filled_with_each_neutral_prompt(slider, triples):
    assert config_of(slider).dataset.slider.triples() == triples
