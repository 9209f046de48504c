"""A lock has one owner at any moment: raced by processes and threads, killed at bad moments."""

import json
import math
import multiprocessing
import os
import subprocess
import sys
from pathlib import Path

import pytest
from fixtures.leftovers import killed_while
from fixtures.races import race

from trainer_core.errors import InputError
from trainer_core.filesystem import storage
from trainer_core.filesystem.storage import acquire, atomic_write, claim_without_links, lock_holder

needs_fork = pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
ROOT = Path(__file__).resolve().parents[2]


def killed_owner(path: Path) -> None:
    """A lock whose owner was killed."""
    killed_while(lambda: acquire(path))
    assert path.is_file()


RACES = """
import json, os, sys
from pathlib import Path
from fixtures.races import race
from trainer_core.filesystem import storage
from trainer_core.filesystem.storage import acquire, atomic_write, claim_without_links
from trainer_core.filesystem.temporary import temporary_beside
what, folder = sys.argv[1], Path(sys.argv[2])
rounds, contents = int(sys.argv[3]), json.loads(sys.argv[4])
path = folder / "lock.json"
def mine():
    return str(os.getpid()).encode()
def linked():
    atomic_write(path, lambda target: target.write_bytes(mine()), replace=False)
    return path.read_bytes() == mine()
def without_links():
    with temporary_beside(path) as target:
        target.write_bytes(mine())
        claim_without_links(target, path)
    return path.read_bytes() == mine()
ways = {"lock": lambda: acquire(path), "linked": linked, "without links": without_links}
acquire(folder / "first").release()
won = []
for _ in range(rounds):
    for each in folder.iterdir():
        each.unlink()
    for name, content in contents.items():
        (folder / name).write_text(content)
        os.utime(folder / name, (1.0, 1.0))
    won.append(race(ways[what]))
left = {each.name for each in folder.iterdir()} - {"lock.json"}
print(json.dumps([won, sorted(left)]))
"""


@needs_fork
@pytest.mark.parametrize(
    ("what", "rounds", "dead", "content"),
    [
        pytest.param("lock", 30, [], None, id="nobody had it"),
        pytest.param("lock", 30, ["lock.json"], None, id="its owner was killed"),
        pytest.param(
            "lock", 15, ["lock.json", "lock.json.takeover"], None, id="so was who took it over"
        ),
        pytest.param("lock", 15, ["lock.json"], "", id="it was never written"),
        pytest.param("linked", 10, [], None, id="a file"),
        pytest.param("without links", 10, [], None, id="a file on a disk without links"),
    ],
)
def test_of_all_processes_that_try_at_once_exactly_one_gets_it(
    tmp_path, what, rounds, dead, content
):
    contents = {}
    for name in dead:
        killed_owner(tmp_path / name)
        contents[name] = (tmp_path / name).read_text() if content is None else content
    # In a small interpreter, which forks faster than one that tests have filled.
    words = [sys.executable, "-c", RACES, what, str(tmp_path), str(rounds), json.dumps(contents)]
    done = subprocess.run(
        words,
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "PYTHONPATH": os.pathsep.join((str(ROOT), str(ROOT / "tests")))},
    )
    assert done.returncode == 0, done.stderr
    won, left = json.loads(done.stdout)
    assert won == [1] * rounds
    assert left == []


@needs_fork
def test_the_race_shows_a_lock_that_two_can_have(tmp_path):
    """Without this the test above would prove nothing."""
    path = tmp_path / "lock.json"
    all_have_looked = multiprocessing.get_context("fork").Barrier(4)

    def look_then_write():
        free = not path.exists()
        all_have_looked.wait()
        path.touch()
        return free

    assert race(look_then_write) == 4


def test_a_lock_is_never_without_its_content(tmp_path, monkeypatch):
    """What gets the name is whole before: a reader sees either no lock or its content."""
    path, seen = tmp_path / "lock.json", []

    def looked_at(act):
        def look(draft, target, **given):
            seen.append((json.loads(draft.read_bytes())["pid"], target))
            act(draft, target, **given)

        return look

    for name in ("claim", "move"):
        monkeypatch.setattr(storage, name, looked_at(getattr(storage, name)))
    with acquire(path):
        assert seen == [(os.getpid(), path)]
    killed_owner(path)
    with acquire(path):
        assert seen[-1] == (os.getpid(), path)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("content", [b"", b'{"host": "he', b"[1]", b'{"host": 1}', b"\xff" * 99])
def test_a_half_written_lock_binds_for_a_moment_and_not_for_ever(tmp_path, monkeypatch, content):
    """Where the disk knows no links, its owner may be about to write it; or was killed."""
    path = tmp_path / "lock.json"
    path.write_bytes(content)
    with monkeypatch.context() as patch:
        patch.setattr(storage, "_PATIENCE_SECONDS", math.inf)
        assert acquire(path) is None
        assert lock_holder(path) is not None
    os.utime(path, (1.0, 1.0))
    assert lock_holder(path) is None
    with acquire(path) as lock:
        assert lock_holder(path) == lock.owner
    assert not path.exists()


def test_the_lock_of_another_machine_is_never_taken(tmp_path):
    path = tmp_path / "lock.json"
    lock = {"host": "elsewhere", "pid": 1, "process_started": 1.0, "token": "x"}
    path.write_text(json.dumps(lock))
    os.utime(path, (1.0, 1.0))
    assert acquire(path) is None
    assert lock_holder(path).host == "elsewhere"


def test_a_lock_that_cannot_be_read_is_held_on_windows_alone(tmp_path, monkeypatch):
    """There nobody is shown what a virus scanner holds; elsewhere another account has left it."""
    denied = iter([PermissionError(13, "denied")] * 2)
    (path := tmp_path / "lock.json").touch()
    os.utime(path, (1.0, 1.0))
    monkeypatch.setattr(Path, "open", lambda *_: (_ for _ in ()).throw(next(denied)))
    for is_windows in (True, False):
        monkeypatch.setattr(storage, "_IS_WINDOWS", is_windows)
        assert (lock_holder(path) is not None) == is_windows


def test_a_name_that_is_taken_is_told_also_without_links(tmp_path):
    (tmp_path / "out").write_bytes(b"theirs")
    (tmp_path / "mine").write_bytes(b"mine")
    with pytest.raises(FileExistsError):
        claim_without_links(tmp_path / "mine", tmp_path / "out")
    assert (tmp_path / "out").read_bytes() == b"theirs"
    with pytest.raises(InputError, match="in the meantime"):
        atomic_write(tmp_path / "out", lambda path: path.write_bytes(b"x"), replace=False)
