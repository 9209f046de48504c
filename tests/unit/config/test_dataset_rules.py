"""Settings of a dataset that contradict each other, and what follows from its preservation."""

from __future__ import annotations

import pytest

from trainer_core.config import RunConfig
from trainer_core.config.defaults import preservation_prompts, preservation_summary
from trainer_core.config.problems import contradictions

TRIGGER = {"trigger_word": "ohwx"}


def config_of(kept, **dataset):
    base = dataset.pop("base", {"path": "Qwen/Qwen-Image"})
    return RunConfig.model_validate(
        {"base": base, "dataset": {"preservation": {"share": 0.5, **kept}, **dataset}}
    )


@pytest.mark.parametrize(
    ("dataset", "named"),
    [
        ({"captions": {"shuffle": 1}}, "dataset.captions.shuffle"),
        ({"captions": {"keep": 2}}, "dataset.captions.keep"),
        ({"captions": {"separator": ";"}}, "dataset.captions.separator"),
        ({"captions": {"shuffle": 32, "most": 16}}, "dataset.captions.shuffle"),
        ({"folders": [{"path": "b", "captions": {"shuffle": 1}}]}, "folders[0].captions.shuffle"),
        ({"path": "", "folders": [{"path": "b"}]}, "dataset.folders names 1 folder(s)"),
        ({"layout": "flat", "metadata": "x.csv"}, "dataset.metadata is set and its layout is flat"),
        ({"path": "", "regularization": {"weight": 0.5}}, "dataset.regularization"),
        ({"preservation": {"count": 3}}, "dataset.preservation"),
        ({"more_resolutions": [512, 16]}, "dataset.more_resolutions[1]: 16"),
        ({"more_resolutions": [10**9]}, "dataset.more_resolutions[0]"),
        ({"more_resolutions": [256, 256]}, "dataset.more_resolutions[1]: 256"),
        ({"resolution": 512, "more_resolutions": [512]}, "dataset.more_resolutions[0]: 512"),
        (
            {"folders": [{"path": "b", "resolution": 256, "more_resolutions": [256]}]},
            "dataset.folders[0].more_resolutions[0]: 256",
        ),
        ({"bucketing": "longest_side", "max_aspect_ratio": 2.0}, "dataset.max_aspect_ratio is 2"),
        ({"resolution": 64, "bucket_step": 128}, "dataset.bucket_step is 128"),
        ({"bucket_step": 128, "folders": [{"path": "b", "resolution": 96}]}, "resolution is 96"),
        ({"validation": {"every": 10}}, "dataset.validation"),
        ({"mask": {"foreground": 0.0, "background": 0.0}}, "dataset.mask.foreground"),
        ({"crop": "mask", "mask": {"source": "none"}}, "dataset.crop"),
        ({"mask": {"source": "none", "invert": True}}, "dataset.mask.invert"),
        ({"flip": True, "flip_except": ["left", " "]}, "dataset.flip_except[1]"),
    ],
)
def test_a_contradiction_is_named(dataset, named):
    (problem,) = contradictions(RunConfig.model_validate({"dataset": {"path": "x", **dataset}}))
    assert named in problem.found
    assert problem.expected
    assert problem.remedy


@pytest.mark.parametrize(
    "dataset",
    [
        {"mask": {"foreground": 0.0}},
        {"mask": {"source": "none"}, "crop": "top"},
        {"mask": {"source": "alpha", "invert": True}, "crop": "mask"},
        {"flip": True, "flip_except": []},
    ],
)
def test_settings_that_agree_pass(dataset):
    assert not contradictions(RunConfig.model_validate({"dataset": {"path": "x", **dataset}}))


PRESERVATION = [
    ({"kind": "class"}, {}, "dataset.preservation.class_word is empty"),
    ({"kind": "class", "class_word": "  "}, {}, "dataset.preservation.class_word is empty"),
    ({"kind": "output"}, TRIGGER, "dataset.preservation.class_word is empty"),
    ({"class_word": "cat"}, {}, "dataset.preservation.class_word is set"),
    ({"kind": "blank", "class_word": "cat"}, {}, "dataset.preservation.class_word is set"),
    ({"kind": "output", "class_word": "cat"}, {}, "dataset.trigger_word is empty"),
    ({"kind": "output", "class_word": "OHWX"}, TRIGGER, "dataset.trigger_word are both"),
    ({"kind": "class", "class_word": "cat", "prompts": ["a"]}, {}, "preservation.prompts"),
    ({"kind": "blank", "prompts": ["a"]}, {}, "dataset.preservation.prompts is set"),
    ({"kind": "blank", "count": 3}, {}, "dataset.preservation.count is set"),
    ({"kind": "blank", "steps": 3}, {}, "dataset.preservation.steps is set"),
    ({"kind": "blank"}, {"caption_dropout": 0.1}, "dataset.caption_dropout is 0.1"),
    (
        {"kind": "blank"},
        {"path": "a", "folders": [{"path": "b", "caption_dropout": 0.2}]},
        "dataset.caption_dropout is 0.2",
    ),
    ({"share": 0.0, "kind": "blank"}, {}, "its share is 0"),
]


@pytest.mark.parametrize(
    ("config", "named"),
    [(config_of(kept, **dataset), named) for kept, dataset, named in PRESERVATION],
)
def test_a_contradiction_of_preservation_has_one_message(config, named):
    (found,) = contradictions(config)
    assert named in found.found
    assert found.expected
    assert "dataset." in found.remedy


@pytest.mark.parametrize(
    ("kept", "dataset"),
    [
        ({}, {"caption_dropout": 0.1}),
        ({"kind": "class", "class_word": "cat", "count": 3, "steps": 3}, {"caption_dropout": 0.1}),
        ({"kind": "blank"}, TRIGGER),
        ({"kind": "output", "class_word": "cat"}, {**TRIGGER, "caption_dropout": 0.1}),
        # A trigger word of one of the folders is enough.
        (
            {"kind": "output", "class_word": "cat"},
            {"path": "a", "folders": [{"path": "b", "trigger_word": "ohwx"}]},
        ),
    ],
)
def test_preservation_that_belongs_together_is_taken(kept, dataset):
    assert contradictions(config_of(kept, **dataset)) == []


def test_prompts_follow_from_the_kind():
    word = {"kind": "class", "class_word": " old man "}
    prompts = preservation_prompts(config_of(word), edits=False)
    assert len(prompts) == 24
    assert prompts[0] == "old man"
    assert all("old man" in each and "  " not in each for each in prompts)
    edits = preservation_prompts(config_of(word), edits=True)
    assert edits[0] == "old man"
    assert set(edits[1:6]).isdisjoint(prompts)
    tiny = preservation_prompts(config_of(word, base={"path": "embedded"}), edits=False)
    assert tiny[0] == "a red old man on a blue background"
    assert preservation_prompts(config_of({"kind": "blank"}), edits=False) == ()
    output = {"kind": "output", "class_word": "cat"}
    assert preservation_prompts(config_of(output, **TRIGGER), edits=True) == ()


def test_the_summary_names_what_the_base_is_held_to():
    told = {
        kind: preservation_summary(config_of({"kind": kind, "class_word": "cat"}))
        for kind in ("trajectory", "class", "blank", "output")
    }
    assert told["trajectory"] == "50% of each batch is the base's own prediction"
    assert told["class"] == f"{told['trajectory']} for 'cat'"
    assert told["blank"] == f"{told['trajectory']} without a prompt"
    assert told["output"] == f"{told['trajectory']} with 'cat' as the trigger word"
