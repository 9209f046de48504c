import json
import os
import subprocess
import sys
import threading

import pytest

from trainer_core.errors import InputError, StorageError
from trainer_core.training.run_folder import (
    create_version,
    is_live,
    open_version,
    remove_dead_versions,
    versions,
)


def dead_lock():
    """A lock of a process that has ended."""
    process = subprocess.Popen([sys.executable, "-c", "pass"])
    process.wait()
    import socket

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


def test_runs_that_start_together_get_different_versions(tmp_path):
    made = []
    threads = [
        threading.Thread(target=lambda: made.append(create_version(tmp_path, {}, "").path))
        for _ in range(8)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(set(made)) == 8


def test_dead_version_that_came_to_nothing_is_removed_and_its_number_is_not_used_again(tmp_path):
    folder = create_version(tmp_path, {}, "")
    kill(folder)
    assert create_version(tmp_path, {}, "").path.name == "v1"
    assert [path.name for path in versions(tmp_path)] == ["v1"]


def test_live_version_is_never_removed(tmp_path):
    folder = create_version(tmp_path, {}, "")
    assert remove_dead_versions(tmp_path) == []
    assert folder.path.is_dir()


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


def test_version_of_another_host_counts_as_live(tmp_path):
    folder = create_version(tmp_path, {}, "")
    lock = {"host": "elsewhere", "pid": 1, "process_started": 1.0}
    (folder.path / "lock.json").write_text(json.dumps(lock))
    assert is_live(folder.path)


def test_pid_that_was_given_to_another_process_is_not_live(tmp_path):
    folder = create_version(tmp_path, {}, "")
    lock = json.loads((folder.path / "lock.json").read_text())
    (folder.path / "lock.json").write_text(json.dumps({**lock, "process_started": 12.0}))
    assert not is_live(folder.path)


def test_live_version_cannot_be_resumed_by_a_second_process(tmp_path):
    folder = create_version(tmp_path, {}, "")
    with pytest.raises(InputError, match=f"in use by process {os.getpid()}"):
        open_version(folder.path)
    folder.release()
    assert open_version(folder.path).path == folder.path


def test_folder_that_cannot_be_written_names_itself_and_the_setting(tmp_path):
    blocked = tmp_path / "file"
    blocked.write_text("")
    with pytest.raises(StorageError, match=r"output\.dir"):
        create_version(blocked / "run", {}, "")
