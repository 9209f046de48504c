"""SIGINT and SIGTERM: a command ends in order. `test_kill` sends them at any moment of a run."""

import json
import os
import signal
import subprocess

import pytest
from deaths import commanded, in_child
from launches import ALONE, ROOT
from runs import record, run_config

from trainer_core.config.read_run_file import dump_config
from trainer_core.training import train

pytestmark = [
    pytest.mark.exhaustive,
    pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork"),
]


def test_while_it_encodes_what_is_encoded_stays(tmp_path):
    cache = tmp_path / "cache"
    config = run_config(tmp_path, cache, training={"steps": 2})
    code, seen = in_child(lambda: commanded(config), cache, (signal.SIGINT, 30))
    assert code == 0, seen
    made = len(list((cache / "latents").glob("*.safetensors")))
    assert 0 < made < 40, "it encoded nothing, or to the end"
    assert not (tmp_path / "run").exists()
    assert not list(cache.rglob(".writing-*"))
    code, again = in_child(lambda: commanded(config), cache)
    assert code == 0
    assert len(again) < len(seen) * 40 / made, "what was encoded was encoded again"


@pytest.mark.slow
def test_a_launcher_of_two_processes_ends_both_in_order(tmp_path, cache):
    """The launcher sends on what it hears, and a terminal tells all of them besides."""
    train(run_config(tmp_path / "one", cache, training={"steps": 1}))  # encodes
    run_file = tmp_path / "run.yaml"
    run_file.write_text(dump_config(run_config(tmp_path, cache, training={"steps": 100_000})))
    running = subprocess.Popen(
        [*ALONE, "-m", "trainer_core", "train", str(run_file), "--json"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"},
    )
    for line in running.stdout:
        if json.loads(line)["event"] == "step_done":
            break
    else:
        raise AssertionError(running.stderr.read()[-3000:])
    find = ["pgrep", "-P", str(running.pid)]
    children = subprocess.run(find, capture_output=True, text=True, check=True).stdout.split()
    assert len(children) == 2
    for each in (*map(int, children), running.pid):
        os.kill(each, signal.SIGINT)
    # The launcher's own code says that it heard a signal.
    out, err = running.communicate(timeout=300)
    last = json.loads(out.splitlines()[-1])
    assert last["event"] == "run_finished", err[-3000:]
    assert last["result"]["status"] == "cancelled"
    version = tmp_path / "run" / "v0"
    step = last["result"]["step"]
    assert (version / "checkpoints" / f"{step:06d}" / "state.json").is_file()
    assert (record(version)["status"], record(version)["stopped_by"]) == ("cancelled", "SIGINT")
    assert not (version / "lock.json").exists()
