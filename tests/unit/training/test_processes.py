"""How processes deal out a step, and a base in parts."""

import pytest
import torch
from torch import nn

from trainer_core.config import RunConfig, TrainingSection
from trainer_core.errors import ConfigError
from trainer_core.training.step.processes import Shares, SingleProcess
from trainer_core.training.step.sharding import check_settings, is_requested

CPU = torch.device("cpu")


@pytest.mark.parametrize(("use", "wanted"), [("true", True), ("false", False), (None, False)])
def test_a_base_in_parts_is_what_the_launcher_asks_for(monkeypatch, use, wanted):
    monkeypatch.setenv("FSDP_VERSION", "2")
    monkeypatch.delenv("ACCELERATE_USE_FSDP", raising=False)
    if use is not None:
        monkeypatch.setenv("ACCELERATE_USE_FSDP", use)
    assert is_requested() is wanted


def test_settings_that_keep_whole_weights_are_refused():
    check_settings(RunConfig())
    config = RunConfig.model_validate({"adapter": {"kind": "lora", "exact_delta": True}})
    with pytest.raises(ConfigError, match=r"exact_delta, and a base in parts"):
        check_settings(config)
    check_settings(RunConfig.model_validate({"memory": {"blocks_to_checkpoint": 2}}))
    for memory in (
        {"blocks_to_swap": 2},
        {"base_format": "nf4"},
        {"compile": True},
        {"checkpoint_inputs": "ram"},
    ):
        config = RunConfig.model_validate({"memory": memory})
        with pytest.raises(ConfigError, match=rf"memory.{next(iter(memory))} is .*, and a base"):
            check_settings(config)


def test_one_process_leads_in_its_turn_and_makes_its_own_passes():
    processes, model = SingleProcess(CPU), nn.Linear(2, 2)
    with processes.turn(), processes.leading(model) as leads:
        processes.shard(model, [], [])
        assert leads
    assert processes.passes(2) == 2
    assert type(model.weight) is nn.Parameter


@pytest.mark.parametrize(
    ("batch", "accumulation", "count"), [(1, 4, 2), (2, 3, 3), (4, 1, 2), (6, 1, 3), (2, 2, 1)]
)
def test_shares_cover_every_sample_of_a_step_exactly_once(batch, accumulation, count):
    training = TrainingSection(batch_size=batch, gradient_accumulation_steps=accumulation)
    covered = []
    for index in range(count):
        shares = Shares(training, index, count)
        part, parts = shares.part
        size = batch // parts
        covered += [
            micro * batch + part * size + sample
            for micro in range(shares.dealt[0], accumulation, shares.dealt[1])
            for sample in range(size)
        ]
    assert sorted(covered) == list(range(batch * accumulation))


def test_step_that_cannot_be_dealt_out_names_both_settings():
    training = TrainingSection(batch_size=3, gradient_accumulation_steps=1)
    with pytest.raises(ConfigError, match=r"gradient_accumulation_steps=2"):
        Shares(training, 0, 2)
