"""Reading ahead gives what reading would give, and leaves nothing behind."""

import threading
from contextlib import closing

import pytest

from trainer_core.training.step.read_ahead import ReadAhead

STEPS, MICROS = 4, 3


def following(step, micro):
    if micro + 1 < MICROS:
        return step, micro + 1
    return (step + 1, 0) if step < STEPS else None


def reading_threads():
    return [each for each in threading.enumerate() if each.name.startswith("read-ahead")]


def test_no_thread_outlives_a_run_that_is_broken_off():
    entered, gate = threading.Event(), threading.Event()
    read = []

    def slow(step, micro):
        read.append((step, micro))
        if (step, micro) == (1, 1):
            entered.set()
            assert gate.wait(60)
        return 0

    def broken_off():
        with closing(ReadAhead(slow, following)) as ahead:
            ahead(1, 0)
            assert entered.wait(60)
            assert reading_threads()
            threading.Timer(0.05, gate.set).start()
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        broken_off()
    assert not reading_threads()
    assert read == [(1, 0), (1, 1)]
