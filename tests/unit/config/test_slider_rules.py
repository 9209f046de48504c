"""Settings of a concept slider that contradict each other: one message each."""

from __future__ import annotations

import pytest

from trainer_core.config import RunConfig
from trainer_core.config.problems import contradictions

ON = {"positive": "an old person", "negative": "a young person", "neutral": ["a person"]}


def config_of(slider, dataset=None, **sections):
    return RunConfig.model_validate({"dataset": {"slider": slider, **(dataset or {})}, **sections})


OF_IMAGES = [
    ({"path": "images"}, "dataset.path is images"),
    ({"regularization": {"path": "b"}}, "dataset.regularization.path is b"),
    ({"validation": {"share": 0.5}}, "dataset.validation.share is 0.5"),
    ({"trigger_word": "ohwx"}, "dataset.trigger_word is ohwx"),
    ({"caption_dropout": 0.1}, "dataset.caption_dropout is 0.1"),
    ({"captions": {"shuffle": 2}}, "dataset.captions.shuffle is 2"),
    ({"mask": {"source": "alpha"}}, "dataset.mask.source is alpha"),
    ({"flip": True}, "dataset.flip is true"),
    ({"crop": "top"}, "dataset.crop is top"),
    ({"layout": "flat"}, "dataset.layout is flat"),
    ({"more_resolutions": [512]}, "dataset.more_resolutions is [512]"),
    ({"num_repeats": 2}, "dataset.num_repeats is 2"),
    ({"upscale": True}, "dataset.upscale is true"),
    ({"control_area": 4096}, "dataset.control_area is 4096"),
    ({"control_dropout": 0.5}, "dataset.control_dropout is 0.5"),
    ({"preservation": {"share": 0.5, "kind": "blank"}}, "preservation.kind is blank"),
]


@pytest.mark.parametrize(
    ("config", "named"), [(config_of(ON, dataset), named) for dataset, named in OF_IMAGES]
)
def test_a_slider_has_nothing_of_a_folder(config, named):
    (problem,) = contradictions(config)
    assert problem.found.endswith(" and dataset.slider.positive is set")
    assert named in problem.found
    assert problem.expected
    assert "dataset." in problem.remedy


def test_a_slider_has_no_further_folders():
    found = contradictions(config_of(ON, {"folders": [{"path": "b"}]}))
    assert any("dataset.folders" in each.found and "slider" in each.found for each in found)


DIRECTIONS = [
    ({"negative": "a"}, "its positive prompt is empty"),
    ({"neutral": ["a"]}, "its positive prompt is empty"),
    ({"positive": "  ", "strength": 3.0}, "its positive prompt is empty"),
    ({"positive": "a", "negative": "a"}, "moves from a to a"),
    ({"positive": "{}", "neutral": ["a cat"]}, "moves from a cat to a cat"),
    ({"positive": "a cat", "neutral": ["a dog", "a cat"]}, "moves from a cat to a cat"),
    ({**ON, "neutral": ["a", "b", "a"]}, "dataset.slider.neutral has a twice"),
]


@pytest.mark.parametrize(
    ("config", "named"), [(config_of(slider), named) for slider, named in DIRECTIONS]
)
def test_prompts_without_a_direction_are_refused(config, named):
    (problem,) = contradictions(config)
    assert named in problem.found
    assert problem.expected
    assert "dataset.slider" in problem.remedy


ELSEWHERE = [
    ({"adapter": {"kind": "lora", "init": "eva"}}, "adapter.init is eva"),
    ({"base": {"variant": "edit"}}, "base.variant is edit"),
    ({"base": {"variant": "fill"}}, "base.variant is fill"),
    (
        {"training": {"text_encoder": {"train": True}}},
        "training.text_encoder.train is true and dataset.slider",
    ),
]


@pytest.mark.parametrize(
    ("config", "named"), [(config_of(ON, **sections), named) for sections, named in ELSEWHERE]
)
def test_what_a_slider_cannot_have_elsewhere(config, named):
    (problem,) = contradictions(config)
    assert named in problem.found


@pytest.mark.parametrize(
    ("slider", "dataset"),
    [
        (ON, {}),
        (ON, {"resolution": 512, "batch_size": 2}),
        (ON, {"preservation": {"share": 0.2, "prompts": ["a cat"]}}),
        (ON, {"preservation": {"share": 0.2, "kind": "class", "class_word": "cat"}}),
        ({"positive": "{}, smiling", "neutral": ["a man", "a woman"]}, {}),
        ({"positive": "smiling"}, {}),
        ({}, {"path": "images", "trigger_word": "ohwx"}),
    ],
)
def test_what_goes_together_is_no_contradiction(slider, dataset):
    assert not contradictions(config_of(slider, dataset))


def test_a_place_in_a_prompt_is_filled_with_each_neutral_prompt():
    slider = config_of({"positive": "old {}", "negative": "{}, young", "neutral": ["a", "b"]})
    assert slider.dataset.slider.triples() == (
        ("a", "old a", "a, young"),
        ("b", "old b", "b, young"),
    )


def test_without_a_negative_or_neutral_prompt():
    assert config_of({"positive": "x", "neutral": ["a"]}).dataset.slider.triples() == (
        ("a", "x", "a"),
    )
    assert config_of({"positive": "x", "negative": "y"}).dataset.slider.triples() == (
        ("", "x", "y"),
    )
