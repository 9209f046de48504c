"""Reading ahead gives what reading would give, and leaves nothing behind."""

import threading

import pytest

from trainer_core.training.step.read_ahead import ReadAhead

STEPS, MICROS = 4, 3


def following(step, micro):
    if micro + 1 < MICROS:
        return step, micro + 1
    return (step + 1, 0) if step < STEPS else None


class Source:
    """Counts what is read, and fails where it is told to."""

    def __init__(self, broken=()):
        self.read, self.broken = [], broken

    def __call__(self, step, micro):
        self.read.append((step, micro))
        if (step, micro) in self.broken:
            raise OSError(f"broken {step} {micro}")
        return step * 10 + micro


def reading_threads():
    return [each for each in threading.enumerate() if each.name.startswith("read-ahead")]


PLACES = [(step, micro) for step in range(1, STEPS + 1) for micro in range(MICROS)]


def test_an_error_comes_out_where_its_batch_is_asked_for_and_not_before():
    with ReadAhead(Source(broken=[(2, 1)]), following) as ahead:
        assert [ahead(*place) for place in PLACES[:4]] == [10, 11, 12, 20]
        with pytest.raises(OSError, match="broken 2 1"):
            ahead(2, 1)
        assert ahead(2, 2) == 22
    assert not reading_threads()


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
        with ReadAhead(slow, following) as ahead:
            ahead(1, 0)
            assert entered.wait(60)
            assert reading_threads()
            threading.Timer(0.05, gate.set).start()
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        broken_off()
    assert not reading_threads()
    assert read == [(1, 0), (1, 1)]
