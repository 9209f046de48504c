"""kill -9 at any moment, also while a checkpoint is being written, loses nothing."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from kill_rounds import RUNS
from runs import metrics, tensors

USUAL = 4
SEED = 20261121
_MOST_MORE = 4
KILLS = int(os.environ.get("KILLS", USUAL))
"""Of each row of `RUNS`; a campaign of a hundred sets 13 (docs/faults.md)."""

ROUNDS = [
    pytest.param("plain", 2, 2),
    # A plain run is killed in `make test`, and more often in a campaign.
    *(
        pytest.param(name, KILLS, 2, marks=pytest.mark.exhaustive)
        for name in RUNS
        if name != "plain" or KILLS > USUAL
    ),
]


def rounds_of(name, rounds, signals, tmp_path, cache, seed=SEED):
    """What became of so many runs that were hit at random moments and then went on."""
    script = Path(__file__).with_name("kill_rounds.py")
    words = [str(tmp_path), str(cache), str(rounds), str(seed), name, signals]
    done = subprocess.run(
        [sys.executable, str(script), *words],
        capture_output=True,
        text=True,
        check=False,
        timeout=1800,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )
    assert done.returncode == 0, done.stderr[-4000:]
    report = json.loads(done.stdout.splitlines()[-1])
    assert [entry["exit"] for entry in report] == [0] * rounds, done.stderr[-4000:]
    return report


def assert_as_if_nothing_had_been(tmp_path, rounds, made_up_for=()):
    """All that a run leaves; `made_up_for` are tensors of the state that may be older.

    A signal that gives up a measurement saves the state without it. The next run measures again,
    and says so in ``run.json`` and the metrics; a checkpoint that is there is not written again.
    """
    reference = tmp_path / "reference" / "run" / "v0"
    files = [
        *(each.name for each in reference.glob("*.safetensors")),
        # Optimizer, averages, ledger and all else that a run goes on from.
        "checkpoints/000008/training_state.safetensors",
    ]
    expected = {name: tensors(reference / name) for name in files}
    for number in range(rounds):
        versions = sorted((tmp_path / f"round{number}" / "run").glob("v*"))
        result = versions[-1]
        for name in files:
            state = tensors(result / name)
            assert state.keys() == expected[name].keys()
            same = state.keys() - set(made_up_for)
            assert all(torch.equal(state[key], expected[name][key]) for key in same), name
        best = [
            json.loads((each / "run.json").read_text()).get("best") for each in (result, reference)
        ]
        assert best[0] == best[1]
        assert metrics(result) == metrics(reference)
        assert (result / "ledger.json").read_bytes() == (reference / "ledger.json").read_bytes()
        assert not list(result.rglob(".writing-*")), "a half-written file was left"


@pytest.mark.slow
@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
@pytest.mark.parametrize(("name", "rounds", "states"), ROUNDS)
def test_run_killed_at_random_moments_resumes_to_the_same_bits(
    name, rounds, states, tmp_path, cache
):
    report = rounds_of(name, rounds, "SIGKILL", tmp_path, cache)
    assert_as_if_nothing_had_been(tmp_path, rounds)
    # The kills must have hit runs in different states, or the test proves little. Where chance has
    # let few of them fall alike, others follow.
    for more in range(_MOST_MORE):
        if len({tuple(entry["at_kill"]) for entry in report}) >= states:
            break
        again = tmp_path / f"more{more}"
        again.mkdir()
        report += rounds_of(name, 1, "SIGKILL", again, cache, SEED + 1 + more)
        assert_as_if_nothing_had_been(again, 1)
    assert len({tuple(entry["at_kill"]) for entry in report}) >= states


@pytest.mark.slow
@pytest.mark.exhaustive
@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
@pytest.mark.parametrize("signals", ["SIGTERM", "SIGINT,SIGTERM"])
def test_a_command_that_is_signalled_at_random_moments_ends_in_order(signals, tmp_path, cache):
    """Also in the middle of a save, a preview or a measurement; a second one ends it at once."""
    rounds = KILLS
    report = rounds_of("everything", rounds, signals, tmp_path, cache)
    assert_as_if_nothing_had_been(tmp_path, rounds, made_up_for=["validation.best"])
    heard = [each for each in report if each["begun"]]
    assert len(heard) >= rounds // 2
    for each in heard:
        allowed = {0} if signals == "SIGTERM" else {0, 1}
        # Behind the end of the run nobody listens any more.
        allowed |= {-signal.SIGTERM} if "000008" in each["at_kill"] else set()
        assert each["ended"] in allowed
        assert each["left"] == [], "a half-written file was left"
        # What it had done is saved; a second signal may come before that.
        assert each["at_kill"] or signals != "SIGTERM"
    assert len({tuple(entry["at_kill"]) for entry in heard}) >= 2
