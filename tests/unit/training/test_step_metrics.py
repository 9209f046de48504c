"""What is measured of a step, as it is written down."""

from contextlib import closing

import torch

from trainer_core.adapters import attach
from trainer_core.config import AdapterConfig
from trainer_core.training.metrics.adapter_norms import AdapterNorms
from trainer_core.training.metrics.metrics_file import MetricsWriter, read_metrics
from trainer_core.training.metrics.step_metrics import MEMORY_EVERY, StepMetrics
from trainer_core.training.step.micro_batch import SampleLoss
from trainer_core.training.step.step_clock import StepClock
from trainer_core.types import StepResult

CPU = torch.device("cpu")
ERRORS = [SampleLoss(0, 0.1, 1 / 3), SampleLoss(1, 0.12, 1.0), SampleLoss(2, 0.9, 2e-7 / 3)]


def refuse(line):
    raise AssertionError(line)


def result(step, **more):
    return StepResult(step, step / 4, 0.5, 1e-4, 0.3, 0.5, 0.01, 1000.0 + step, **more)


def measurements(memory):
    base = torch.nn.Sequential(torch.nn.Linear(4, 4))
    adapter = attach(base.requires_grad_(False), AdapterConfig(kind="lora", rank=2))
    with torch.no_grad():
        for parameter in adapter.parameters():
            parameter.fill_(1 / 3)
    norms = AdapterNorms(adapter, (), 1, 1000, refuse)
    return StepMetrics(StepClock(CPU), norms, 4, CPU, memory)


def test_memory_is_looked_at_now_and_then_and_its_peak_never_falls():
    peaks = iter([300 << 20, 100 << 20])
    measured = measurements(lambda device: {"ram": 5 << 20, "peak": next(peaks)})
    seen = {step: measured.add_to(result(step), ()).memory for step in range(7, MEMORY_EVERY + 1)}
    first, last = {"ram": 5, "peak": 300}, {"ram": 5, "peak": 300}
    assert seen == {7: first, 8: None, 9: None, MEMORY_EVERY: last}


def test_a_line_comes_back_as_it_was_and_is_small(tmp_path):
    measured = measurements(lambda device: {"ram": 5 << 30, "allocated": 5 << 30})
    measured.measure_norms(1)
    steps = [measured.add_to(result(1), ERRORS), result(2)]
    path = tmp_path / "metrics.jsonl"
    with closing(MetricsWriter(path, 0, refuse, lambda *about: ())) as writer:
        for step in steps:
            writer.write(step)
    assert read_metrics(path) == steps
    # A run that goes on writes the kept lines again, to the byte.
    before = path.read_text()
    with closing(MetricsWriter(path, 2, refuse, lambda *about: ())) as writer:
        assert writer.totals.losses == tuple(step.loss for step in steps)
    assert path.read_text() == before
    assert len(before.splitlines()[0]) < 450
