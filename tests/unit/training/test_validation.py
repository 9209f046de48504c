"""The loss on held-out images without a base: who measures what, and what is told."""

import math

import pytest
import torch

from tests.fixtures.thread_processes import together
from trainer_core.config import MaskSection
from trainer_core.data.cache.cache_file import make_entry, write_entry
from trainer_core.data.cache.cached_dataset import CachedDataset
from trainer_core.data.cache.cached_item import CachedItem
from trainer_core.training.objectives.validation import (
    Validation,
    ValidationSetup,
    hold_out,
    trained_alike,
)
from trainer_core.training.step.processes import SingleProcess
from trainer_core.types import Bucket

CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def dataset(tmp_path_factory):
    folder = tmp_path_factory.mktemp("held")
    items = []
    for number in range(9):
        latents, text = (make_entry(folder, kind, number) for kind in ("latents", "text"))
        size = Bucket(16 * (1 + number % 2), 16)
        write_entry(latents, {"latents": torch.full((2, 2, 2 * (1 + number % 2)), 0.1 * number)})
        write_entry(text, {"t": torch.zeros(1, 3)})
        held = number != 4
        items.append(CachedItem(f"{number}", size, (), latents, (), text, text, validation=held))
    return CachedDataset(items)


def validation(dataset, processes, loss=None, cancelled=lambda: False, most=99, batch=3):
    told = []
    levels = lambda _: (0.25, 0.75)  # noqa: E731
    setup = ValidationSetup([batch] * len(dataset), levels, 2, MaskSection())
    held = hold_out(dataset, most, setup)
    trained = trained_alike(dataset, held, setup)
    loss = loss or (lambda points: points.target.square().flatten(1).mean(1).sum())
    module = torch.nn.Linear(1, 1)
    return Validation(held, trained, loss, module, processes, cancelled, told.append), told


def test_the_number_depends_on_neither_batches_nor_processes(dataset):
    alone = validation(dataset, SingleProcess(CPU))[0](0)
    for batch in (1, 2, 8):
        other = validation(dataset, SingleProcess(CPU), batch=batch)[0](7)
        assert other.loss == pytest.approx(alone.loss, rel=1e-6)
    for count in (2, 3, 12):
        found = together(count, lambda process: validation(dataset, process)[0](0).loss)
        assert found == pytest.approx([alone.loss] * count, rel=1e-6)


def test_a_full_device_leaves_the_number_out_and_says_so(dataset):
    def full(points):
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate")

    measure, told = validation(dataset, SingleProcess(CPU), full)
    assert measure(3) == type(measure(3))(None, cancelled=False)
    assert "step 3" in told[0]
    assert "memory is full" in told[0]


def test_a_number_that_is_not_finite_is_left_out_and_told(dataset):
    measure, told = validation(dataset, SingleProcess(CPU), lambda points: torch.tensor(math.nan))
    assert measure(0).loss is None
    assert "not a finite number" in told[0]


def test_modes_and_generators_are_as_before(dataset):
    measure, _ = validation(dataset, SingleProcess(CPU))
    measure.transformer.train()
    state = torch.random.get_rng_state()
    measure(0)
    assert measure.transformer.training
    assert torch.equal(torch.random.get_rng_state(), state)
