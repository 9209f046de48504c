"""kill -9 at any moment, also while a checkpoint is being written, loses nothing."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from kill_rounds import RUNS
from runs import metrics, tensors

ROUNDS = [pytest.param("plain", 3, 2)] + [
    pytest.param(name, rounds, 3, marks=pytest.mark.exhaustive)
    for name, rounds in zip(RUNS, (20, 12, 12, 12, 12, 12, 12, 12), strict=True)
]
"""More than a hundred kills in all."""


@pytest.mark.slow
@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
@pytest.mark.parametrize(("name", "rounds", "states"), ROUNDS)
def test_run_killed_at_random_moments_resumes_to_the_same_bits(
    name, rounds, states, tmp_path, cache
):
    script = Path(__file__).with_name("kill_rounds.py")
    seed = 20261121
    done = subprocess.run(
        [sys.executable, str(script), str(tmp_path), str(cache), str(rounds), str(seed), name],
        capture_output=True,
        text=True,
        check=False,
        timeout=900,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )
    assert done.returncode == 0, done.stderr[-4000:]
    report = json.loads(done.stdout.splitlines()[-1])
    assert [entry["exit"] for entry in report] == [0] * rounds, done.stderr[-4000:]
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
            assert all(torch.equal(state[key], expected[name][key]) for key in state), name
        assert metrics(result) == metrics(reference)
        assert (result / "ledger.json").read_bytes() == (reference / "ledger.json").read_bytes()
        assert not list(result.rglob(".writing-*")), "a half-written file was left"
    # The kills must have hit runs in different states, or the test proves little.
    assert len({tuple(entry["at_kill"]) for entry in report}) >= states
