import json
import os
import socket
import subprocess
import sys

import pytest
from fixtures.races import race

from trainer_core.errors import InputError, StorageError
from trainer_core.training.checkpoints.run_folder import (
    create_version,
    failure_reason,
    is_live,
    open_version,
    remove_dead_versions,
    versions,
)


def dead_lock():
    """A lock of a process that has ended."""
    process = subprocess.Popen([sys.executable, "-c", "pass"])
    process.wait()
    return {"host": socket.gethostname(), "pid": process.pid, "process_started": 1.0}


def kill(folder):
    (folder.path / "lock.json").write_text(json.dumps(dead_lock()))


def test_versions_count_up_and_hold_record_run_file_and_lock(tmp_path):
    first = create_version(tmp_path, {"steps": 3}, "seed: 1\n")
    second = create_version(tmp_path, {}, "")
    assert [path.name for path in versions(tmp_path)] == ["v0", "v1"]
    record = first.read_record()
    assert (record["status"], record["steps"], record["pid"]) == ("running", 3, os.getpid())
    assert (first.path / "run.yaml").read_text() == "seed: 1\n"
    assert is_live(first.path)
    assert is_live(second.path)
    assert not list(tmp_path.glob(".new-*"))


def test_dead_version_that_came_to_nothing_is_removed_and_its_number_is_not_used_again(tmp_path):
    folder = create_version(tmp_path, {}, "")
    kill(folder)
    assert create_version(tmp_path, {}, "").path.name == "v1"
    assert [path.name for path in versions(tmp_path)] == ["v1"]


@pytest.mark.parametrize("keep", ["checkpoint", "steps", "metrics", "done"])
def test_dead_version_with_work_in_it_stays(tmp_path, keep):
    folder = create_version(tmp_path, {}, "")
    if keep == "checkpoint":
        (folder.checkpoints / "000002").mkdir(parents=True)
    elif keep == "steps":
        folder.update_record(step=5)
    elif keep == "metrics":
        folder.metrics.write_text("{}\n" * 5)
    else:
        folder.update_record(status="done", step=2)
    kill(folder)
    assert remove_dead_versions(tmp_path) == []


@pytest.mark.parametrize(
    ("interrupt", "name"),
    [(KeyboardInterrupt(), "SIGINT"), (KeyboardInterrupt("SIGTERM"), "SIGTERM")],
)
def test_a_signal_that_ends_a_run_at_once_is_named_until_the_run_goes_on(tmp_path, interrupt, name):
    folder = create_version(tmp_path, {}, "")
    with pytest.raises(KeyboardInterrupt), folder:
        raise interrupt
    record = folder.read_record()
    assert (record["status"], record["stopped_by"]) == ("cancelled", name)
    folder.update_record(host="elsewhere", pid=1, process_started=1.0, reason="full")
    with open_version(folder.path) as again:
        again.go_on({"steps": 3}, "seed: 0\n")
        record = again.read_record()
    assert (record["status"], record["steps"]) == ("running", 3)
    assert (record["host"], record["pid"]) == (socket.gethostname(), os.getpid())
    assert not record.keys() & {"stopped_by", "reason"}


def test_leaving_a_version_gives_up_its_lock_and_an_error_marks_it_failed(tmp_path):
    with create_version(tmp_path, {}, "") as folder:
        pass
    assert folder.read_record()["status"] == "running"
    assert not (folder.path / "lock.json").exists()
    with pytest.raises(StorageError), open_version(folder.path):
        raise StorageError("the disk is full", "room", "Free some.")
    assert "the disk is full\nExpected: room\nTo do: F" in failure_reason(folder.read_record())
    assert not (folder.path / "lock.json").exists()


def test_live_version_cannot_be_resumed_by_a_second_process(tmp_path):
    folder = create_version(tmp_path, {}, "")
    with pytest.raises(InputError, match=f"in use by process {os.getpid()}"):
        open_version(folder.path)
    folder.release()
    assert open_version(folder.path).path == folder.path


@pytest.mark.exhaustive
@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
@pytest.mark.parametrize("before", ["ended", pytest.param("killed", marks=pytest.mark.exhaustive)])
def test_of_all_processes_that_resume_a_version_at_once_exactly_one_owns_it(tmp_path, before):
    for number in range(12):
        folder = create_version(tmp_path / str(number), {}, "")
        folder.release()
        if before == "killed":
            kill(folder)
        assert race(lambda path=folder.path: open_version(path)) == 1


def test_folder_that_cannot_be_written_names_itself_and_the_setting(tmp_path):
    blocked = tmp_path / "file"
    blocked.write_text("")
    with pytest.raises(StorageError, match=r"output\.dir"):
        create_version(blocked / "run", {}, "")
