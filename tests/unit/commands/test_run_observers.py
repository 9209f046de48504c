"""Observers print every event, and signals become a cancelled run."""

import os
import signal

import pytest

from trainer_core.commands.run_observers import CancelSwitch, TextObserver, watching
from trainer_core.training.observer import RunRequests, StepDone, Warned
from trainer_core.types import StepResult

_STEP = StepDone(StepResult(1, 0.1, 0.5, 1e-4, 1.0, 0.4, 0.2, 9.0), 2)


def test_terminal_gets_a_bar_that_gives_way_to_lines(capsys):
    observer = TextObserver(CancelSwitch(), terminal=True)
    observer.notify(_STEP)
    observer.notify(Warned("careful"))
    out = capsys.readouterr().out
    assert out.startswith("\r 50% [")
    assert out.endswith("\r\x1b[KNote: careful\n")


@pytest.fixture
def hangups_count():
    """The tests themselves may run under nohup, which ignores hang-ups."""
    before = signal.signal(signal.SIGHUP, signal.SIG_DFL)
    yield
    signal.signal(signal.SIGHUP, before)


@pytest.mark.usefixtures("hangups_count")
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_first_signal_cancels_and_second_stops(number, capfd):
    before = signal.getsignal(number)
    with watching(as_json=True) as observer:
        assert not observer.requests().cancel
        assert not observer.cancelled()
        assert observer.stopped_by is None
        os.kill(os.getpid(), number)
        assert observer.requests().cancel
        assert observer.cancelled()
        assert observer.cancelled(), "asking changed the answer"
        assert observer.stopped_by == signal.Signals(number).name
        with pytest.raises(KeyboardInterrupt, match=signal.Signals(number).name):
            os.kill(os.getpid(), number)
    assert signal.getsignal(number) is before
    assert "Stopping after this step" in capfd.readouterr().err


@pytest.mark.skipif(not hasattr(signal, "SIGUSR1"), reason="Windows has no such signal")
@pytest.mark.parametrize("rank", ["0", "1"])
def test_one_signal_saves_and_previews_once_and_the_run_goes_on(rank, monkeypatch):
    monkeypatch.setenv("RANK", rank)
    before = signal.getsignal(signal.SIGUSR1)
    with watching(as_json=True) as observer:
        assert observer.requests() == RunRequests()
        for _ in range(2):
            os.kill(os.getpid(), signal.SIGUSR1)
            assert observer.requests() == RunRequests(save=True, preview=True)
            assert observer.requests() == RunRequests()
        assert not observer.cancelled()
        assert observer.stopped_by is None
    assert signal.getsignal(signal.SIGUSR1) is before
