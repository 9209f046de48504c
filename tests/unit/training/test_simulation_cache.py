"""Simulated steps in a file: read as they were written, few, and of what they depend on."""

import json

import pytest

from tests.fixtures.qwen_base import make_qwen_transformer
from trainer_core.config import RunConfig
from trainer_core.training.memory import simulation_cache
from trainer_core.training.memory.simulated_bytes import ADAPTER, STEP_WORK, Phase
from trainer_core.training.memory.simulation_cache import KeptSimulations, step_facts

NUMBERS = {ADAPTER: 3, STEP_WORK[0]: 2**60, Phase("forward", 1, -2): -5, Phase("end"): 7}


def ask(path, fact="base", run=(3, True, None)):
    """What is found, and whether it was simulated."""
    made = []
    found = KeptSimulations(path, fact).find(run, lambda: made.append(1) or dict(NUMBERS))
    assert found == NUMBERS
    return bool(made)


def test_what_is_known_is_not_simulated(tmp_path, monkeypatch):
    monkeypatch.setattr(simulation_cache, "_MOST", 16)
    path = tmp_path / "kept.json"
    assert [ask(path), ask(path), ask(path, "other"), ask(path)] == [True, False, True, False]
    assert [ask(path, run=(3, True, "nf4")), ask(path)] == [True, False]
    for number in range(20):
        ask(path, number)
    assert len(json.loads(path.read_text())) == 16
    assert ask(path)


@pytest.mark.parametrize(
    "spoil",
    [
        lambda text: "",
        lambda text: "[]",
        lambda text: text[:-9],
        lambda text: text.replace('"forward", 1', '"forward", "x"'),
        lambda text: text.replace(" 7]", " [7]]"),
        lambda text: text.replace(" 7]", " 1e999]"),
        lambda text: json.dumps({key: [[]] for key in json.loads(text)}),
        lambda text: " " * 2**23 + text,
    ],
)
def test_a_damaged_file_is_as_if_there_were_none(tmp_path, spoil):
    path = tmp_path / "kept.json"
    ask(path)
    path.write_text(spoil(path.read_text()))
    assert ask(path)
    assert not ask(path)


@pytest.mark.parametrize(
    "changed",
    [
        {"adapter": {"kind": "lora", "rank": 3}},
        {"training": {"batch_size": 3}},
        {"training": {"noises_per_latent": 2}},
        {"training": {"optimizer": {"name": "sgd"}}},
    ],
)
def test_all_that_a_step_depends_on_is_part_of_its_facts(changed):
    def facts(settings, layers=2):
        config = RunConfig.model_validate({"family": "qwen_image", **settings})
        return step_facts(make_qwen_transformer(layers=layers), config)

    plain = {"adapter": {"kind": "lora", "rank": 2}}
    assert facts({**plain, **changed}) != facts(plain) != facts(plain, layers=3)
    longer = {"training": {"steps": 9, "optimizer": {"learning_rate": 1e-3}}}
    assert facts({**plain, **longer}) == facts(plain)
