"""SIGINT and SIGTERM at any moment of a command: it ends in order, and a second one at once."""

import json
import os
import signal
import subprocess
import sys

import pytest
from launches import ALONE, ROOT
from runs import run_config
from test_interrupted import PREVIEW

from trainer_core.config.reading import dump_config
from trainer_core.training import train

COMMAND = [sys.executable, "-m", "trainer_core"]
LATER = pytest.mark.exhaustive


def launch(folder, config, *words, command=COMMAND, environment=None):
    """Start training in a process of its own, which prints a JSON object a line."""
    run_file = folder / "run.yaml"
    run_file.write_text(dump_config(config))
    return subprocess.Popen(
        [*command, "train", str(run_file), *words, "--json"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", **(environment or {})},
    )


def until(running, name, **fields):
    """Read events up to the first of a name with these fields."""
    for line in running.stdout:
        event = json.loads(line)
        if event["event"] == name and all(event[key] == fields[key] for key in fields):
            return event
    raise AssertionError(running.stderr.read()[-3000:])


def rest(running, seconds=120):
    """The exit code, the events that are left and what was said of errors."""
    out, err = running.communicate(timeout=seconds)
    return running.returncode, [json.loads(line) for line in out.splitlines()], err


def left_half(folder):
    return [path for path in folder.rglob("*") if path.name.startswith(".writing-")]


@LATER  # test_command_line stops a run in `make test`
def test_while_it_encodes_what_is_encoded_stays(tmp_path):
    config = run_config(tmp_path, tmp_path / "cache", training={"steps": 2})
    running = launch(tmp_path, config)
    until(running, "cache_progress")
    running.send_signal(signal.SIGINT)
    code, events, err = rest(running)
    assert code == 0, err
    assert events[-1]["event"] == "run_finished"
    result = events[-1]["result"]
    assert (result["status"], result["step"], result["adapters"]) == ("cancelled", 0, [])
    made = events[-2]["done"] if len(events) > 1 else 1
    assert made < 40, "it encoded to the end"
    assert not (tmp_path / "run").exists()


MOMENTS = {
    "it starts": ("run_started", {}),
    "a preview": ("preview_done", {"step": 0}),
    "validation": ("validation_done", {"step": 0}),
    "a save": ("checkpoint_saved", {}),
}


@pytest.mark.parametrize("moment", [pytest.param(each, marks=LATER) for each in MOMENTS])
def test_at_any_moment_it_saves_and_says_where(tmp_path, cache, moment):
    name, fields = MOMENTS[moment]
    settings = {
        "training": {"steps": 1000, "checkpoint_every": 1},
        "dataset": {"validation": {"share": 0.1, "every": 2, "most": 2}},
    }
    if moment == "a preview":
        settings["preview"] = PREVIEW
    config = run_config(tmp_path, cache, **settings)
    running = launch(tmp_path, config)
    until(running, name, **fields)
    running.send_signal(signal.SIGTERM)
    code, events, err = rest(running)
    assert code == 0, err
    result = events[-1]["result"]
    assert (events[-1]["event"], result["status"]) == ("run_finished", "cancelled")
    version = tmp_path / "run" / "v0"
    assert result["adapters"] == [
        str(version / "checkpoints" / f"{result['step']:06d}" / "adapter.safetensors")
    ]
    assert (version / "checkpoints" / f"{result['step']:06d}" / "state.json").is_file()
    assert not (version / "lock.json").exists()
    assert not left_half(tmp_path)


@LATER
def test_a_second_one_stops_at_once_and_nothing_is_half_written(tmp_path, cache):
    config = run_config(tmp_path, cache, training={"steps": 1000}, preview={**PREVIEW, "every": 1})
    running = launch(tmp_path, config)
    until(running, "preview_done", step=0)
    running.send_signal(signal.SIGINT)
    for line in running.stderr:
        if "Once more stops at once" in line:
            break
    running.send_signal(signal.SIGINT)
    code, _, _ = rest(running)
    assert code in {0, 1}, "1 unless it had ended in between"
    version = tmp_path / "run" / "v0"
    record = json.loads((version / "run.json").read_text())
    assert (record["status"], record["stopped_by"]) == ("cancelled", "SIGINT")
    assert not (version / "lock.json").exists()
    assert not left_half(tmp_path)


@pytest.mark.slow
@LATER
def test_a_launcher_of_two_processes_ends_both_in_order(tmp_path, cache):
    """The launcher sends on what it hears, and a terminal tells all of them besides."""
    config = run_config(tmp_path, cache, training={"steps": 1000})
    train(run_config(tmp_path / "one", cache, training={"steps": 1}))  # encodes
    launcher = [*ALONE, "-m", "trainer_core"]
    running = launch(tmp_path, config, command=launcher)
    until(running, "step_done")
    children = subprocess.run(
        ["pgrep", "-P", str(running.pid)], capture_output=True, text=True, check=True
    ).stdout.split()
    assert len(children) == 2
    for child in children:
        os.kill(int(child), signal.SIGINT)
    running.send_signal(signal.SIGINT)
    _, events, err = rest(running)  # the launcher's own code says that it heard a signal
    assert events[-1]["event"] == "run_finished", err[-3000:]
    assert events[-1]["result"]["status"] == "cancelled"
    step = events[-1]["result"]["step"]
    version = tmp_path / "run" / "v0"
    assert (version / "checkpoints" / f"{step:06d}" / "state.json").is_file()
    record = json.loads((version / "run.json").read_text())
    assert (record["status"], record["stopped_by"]) == ("cancelled", "SIGINT")
    assert not (version / "lock.json").exists()
