"""Settings that contradict each other are refused, and only those; a slider's are beside it."""

import pytest

from tests.fixtures.tables import table
from trainer_core.config import RunConfig
from trainer_core.config.defaults import fitted_warmup, preservation_prompts
from trainer_core.config.optimizer import OptimizerSection
from trainer_core.config.run_file_problems import check_config, contradictions
from trainer_core.config.section import traits_of
from trainer_core.errors import ConfigError

TRIGGER = {"trigger_word": "ohwx"}


def optimizer(**values):
    return {"training": {"optimizer": values}}


def problems(values):
    return contradictions(RunConfig.model_validate(values))


CONTRADICTIONS = [
    *table(__file__, "contradictions"),
    ("adapter.include", {"adapter": {"include": ["(" * 5000 + ")" * 5000]}}),
    ("adapter.exclude", {"adapter": {"exclude": ["x" * 1001]}}),
    ("adapter.targets", {"adapter": {"targets": ["(.|.)" * 50]}}),
    *(
        (key, optimizer(name=name, **{key: 0.5}))
        for key in ("eps", "beta2")
        for name in traits_of(OptimizerSection.model_fields[key]).not_with[0].values
    ),
]


@pytest.mark.parametrize(("named", "values"), CONTRADICTIONS)
def test_contradiction_is_named(named, values):
    (problem,) = problems(values)
    assert named in problem.found
    assert problem.expected
    assert problem.remedy
    with pytest.raises(ConfigError):
        check_config(RunConfig.model_validate(values))


@pytest.mark.parametrize(("named", "dataset"), table(__file__, "dataset_contradictions"))
def test_a_contradiction_of_a_dataset_is_named(named, dataset):
    (problem,) = problems({"dataset": {"path": "x", **dataset}})
    assert named in problem.found
    assert problem.expected
    assert problem.remedy


def config_of(kept, **dataset):
    base = dataset.pop("base", {"path": "Qwen/Qwen-Image"})
    return RunConfig.model_validate(
        {"base": base, "dataset": {"preservation": {"share": 0.5, **kept}, **dataset}}
    )


@pytest.mark.parametrize(
    ("named", "config"),
    [
        (named, config_of(kept, **dataset))
        for named, kept, dataset in table(__file__, "preservation_contradictions")
    ],
)
def test_a_contradiction_of_preservation_has_one_message(named, config):
    (found,) = contradictions(config)
    assert named in found.found
    assert found.expected
    assert "dataset." in found.remedy


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


@pytest.mark.parametrize("steps", [5, 40])
def test_a_warm_up_longer_than_the_run_is_shortened(steps):
    training = {"steps": steps, "schedule": {"warmup_steps": 20}}
    config, note = fitted_warmup(RunConfig.model_validate({"training": training}))
    assert config.training.schedule.warmup_steps == (0 if steps == 5 else 20)
    assert ("shortened from 20 " in note) == (steps == 5)
