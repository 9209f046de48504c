"""Progress reads well at any width and any pace."""

import pytest

from trainer_core.commands.console import LineRate, Pace, bar_text
from trainer_core.types import StepResult


def step(number: int, loss: float = 1.0, seconds: float = 0.5) -> StepResult:
    return StepResult(number, 0.0, loss, 1e-4, 1.0, 0.5, seconds, 0.0)


@pytest.mark.parametrize("columns", [20, 40, 80, 200])
@pytest.mark.parametrize("done", [0, 1, 50, 100, 120])
def test_bar_never_wraps(columns, done):
    text = bar_text(done, 100, "loss 0.1234, 0.50 s/step, 3:00 left", columns)
    assert len(text) <= columns - 1
    assert text.isascii()


def test_pace_is_the_mean_of_the_last_twenty_steps():
    pace = Pace()
    for number in range(1, 11):
        pace.step_text(step(number, loss=100.0, seconds=100.0), 100)
    for number in range(11, 30):
        pace.step_text(step(number, loss=1.0, seconds=0.5), 100)
    assert pace.step_text(step(30, loss=3.0, seconds=0.5), 100) == (
        "loss 1.1000, 0.50 s/step, 0:35 left"
    )


def test_log_lines_come_first_last_and_every_ten_seconds():
    now = [0.0]
    rate = LineRate(lambda: now[0])
    printed = []
    for number in range(1, 31):
        now[0] += 1.0
        if rate.due(number, 30):
            printed.append(number)
    assert printed == [1, 11, 21, 30]
