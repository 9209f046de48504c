import json
from contextlib import closing

import torch

from trainer_core.training.metrics.metrics_file import MetricsWriter, read_metrics
from trainer_core.training.metrics.tensorboard import TensorBoard
from trainer_core.types import StepResult


def refuse(reason):
    raise AssertionError(reason)


def board(*about):
    return [TensorBoard(*about)]


def result(step, loss=0.5):
    return StepResult(step, step / 4, loss, 1e-4, 0.3, 0.5, 0.01, 1000.0 + step)


def test_lines_have_the_documented_fields_and_exact_numbers(tmp_path):
    path = tmp_path / "metrics.jsonl"
    with closing(MetricsWriter(path, 0, refuse, board)) as writer:
        writer.write(result(1, loss=0.1 + 0.2))
    fields = json.loads(path.read_text())
    assert list(fields) == [
        "step",
        "epoch",
        "loss",
        "learning_rate",
        "grad_norm",
        "sigma_mean",
        "step_seconds",
        "time",
    ]
    assert fields["loss"] == 0.1 + 0.2
    assert list(tmp_path.glob("events.out.tfevents.*"))


def test_resume_cuts_off_later_steps_and_half_lines(tmp_path):
    path = tmp_path / "metrics.jsonl"
    with closing(MetricsWriter(path, 0, refuse, board)) as writer:
        for step in range(1, 5):
            writer.write(result(step))
    whole = path.read_text()
    path.write_text(whole + '{"step": 5, "los')
    with closing(MetricsWriter(path, 2, refuse, board)) as writer:
        assert [step.step for step in read_metrics(path)] == [1, 2]
        writer.write(result(3))
    assert path.read_text() == "".join(whole.splitlines(keepends=True)[:3])
    assert [step.step for step in read_metrics(path)] == [1, 2, 3]


def test_a_board_says_nothing_unless_it_does_not_work(tmp_path):
    (tmp_path / "file").write_text("")
    told = {}
    for name, folder in (("works", tmp_path / "board"), ("blocked", tmp_path / "file" / "run")):
        told[name] = []
        writer = TensorBoard(folder, 0, told[name].append)
        writer.write(result(1))
        for index, channels in enumerate((3, 4)):
            shown = torch.zeros(1, channels, 8, 8)
            writer.write_preview(1, index, shown, rate=0.0, movie=tmp_path / "0.mp4")
        writer.close()
    (events,) = (tmp_path / "board").glob("events.out.tfevents.*")
    assert b"training/loss" in events.read_bytes()
    assert told["works"] == []
    (reason,) = told["blocked"]
    assert reason.startswith("TensorBoard does not work (")
    assert "\n" not in reason
