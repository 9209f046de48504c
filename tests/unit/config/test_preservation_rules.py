"""Settings of preservation that contradict each other: one message each, and what is told."""

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
    ("kept", "dataset", "named"),
    [
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
    ],
)
def test_a_contradiction_has_one_message_of_three_parts(kept, dataset, named):
    (found,) = contradictions(config_of(kept, **dataset))
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
def test_what_belongs_together_is_taken(kept, dataset):
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
