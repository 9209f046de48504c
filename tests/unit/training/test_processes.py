import pytest
import torch

from trainer_core.config import TrainingSection
from trainer_core.errors import ConfigError
from trainer_core.training.processes import Shares, SingleProcess


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


def test_single_process_leaves_gradients_and_numbers_alone():
    processes = SingleProcess(torch.device("cpu"))
    parameter = torch.nn.Parameter(torch.ones(2))
    processes.backward((parameter * 3).sum())
    processes.sum_gradients([parameter])
    assert parameter.grad.tolist() == [3.0, 3.0]
    assert processes.sum_numbers([1.0, 2.0]) == [1.0, 2.0]
