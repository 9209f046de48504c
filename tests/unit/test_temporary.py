"""Temporary names tell their owner; what nobody alive owns is removed and told, and only that."""

import os
import time
from pathlib import Path

import pytest
from fixtures.leftovers import killed_while, left_behind

from trainer_core.filesystem.temporary import remove_leftovers, set_aside, temporary_beside

DAY = 86400.0
pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")


def aged(path: Path, seconds: float) -> Path:
    """A file or folder that has not changed for a while."""
    moment = (time.time() - seconds,) * 2
    for place in [*path.rglob("*"), path]:
        os.utime(place, moment)
    return path


@pytest.mark.parametrize("folder", [False, True])
def test_what_a_killed_process_left_is_removed_and_told_with_its_size(tmp_path, folder):
    left = left_behind(tmp_path / "big.safetensors", b"0" * 3_000_000, folder=folder)
    (tmp_path / "kept.safetensors").write_bytes(b"whole")
    (note,) = remove_leftovers(tmp_path, tmp_path / "absent")
    assert left.name in note
    assert "3 MiB" in note
    assert str(tmp_path) in note
    assert [path.name for path in tmp_path.iterdir()] == ["kept.safetensors"]
    assert remove_leftovers(tmp_path) == []


def test_what_a_living_process_writes_is_not_touched(tmp_path):
    told, tell = os.pipe()
    wait, end = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.close(end)
        with temporary_beside(tmp_path / "theirs") as path:
            path.write_bytes(b"x")
            os.write(tell, b".")
            os.read(wait, 1)
        os._exit(0)
    os.read(told, 1)
    with temporary_beside(tmp_path / "mine") as mine:
        mine.write_bytes(b"y")
        (theirs,) = set(tmp_path.iterdir()) - {mine}
        aged(theirs, 30 * DAY)
        assert remove_leftovers(tmp_path) == []
        assert theirs.read_bytes() == b"x"
    os.close(end)
    os.waitpid(pid, 0)
    assert not list(tmp_path.iterdir())


def test_a_checkpoint_that_is_being_written_has_no_long_path(tmp_path):
    """Windows takes 259 characters, of which the folders of a run and its host have many."""
    with temporary_beside(tmp_path / "checkpoints/000500") as folder:
        for name in ("samples", "training_state.safetensors"):
            with temporary_beside(folder / name) as path:
                assert len(str(path)) - len(str(tmp_path)) < 110


def test_a_process_that_has_the_number_again_owns_nothing(tmp_path):
    """The number alone would keep the file for as long as that process runs."""
    with temporary_beside(tmp_path / "x") as path:
        _, host, pid, started, token = path.name.removesuffix("-x.part").split("-")
        other = f".writing-{host}-{os.getppid()}-{int(started) - 10_000_000}-{token}-x.part"
        (tmp_path / other).write_bytes(b"")
    assert pid == str(os.getpid())
    assert len(remove_leftovers(tmp_path)) == 1


@pytest.mark.parametrize(("age", "gone", "told"), [(0, 0, 0), (2, 0, 1), (6, 0, 1), (8, 1, 1)])
def test_what_another_machine_writes_is_left_alone_for_a_week(tmp_path, age, gone, told):
    left = left_behind(tmp_path / "x", folder=True)
    name = f".writing-{'0' * 8}-{left.name.split('-', 2)[2]}"
    aged(left.rename(tmp_path / name), age * DAY)
    notes = remove_leftovers(tmp_path)
    assert len(notes) == told
    assert (tmp_path / name).exists() is not bool(gone)
    assert all(name in note for note in notes)


def test_links_are_removed_and_not_followed(tmp_path):
    (tmp_path / "else").mkdir()
    (tmp_path / "else" / "precious").write_bytes(b"")
    left = left_behind(tmp_path / "x")
    left.unlink()
    left.symlink_to(tmp_path / "else")
    assert len(remove_leftovers(tmp_path)) == 1
    assert not left.is_symlink()
    assert (tmp_path / "else" / "precious").exists()


@pytest.mark.parametrize("new_came", [False, True])
def test_what_was_being_replaced_is_put_back_unless_the_new_one_is_there(tmp_path, new_came):
    target = tmp_path / "merged"
    target.mkdir()
    (target / "old").write_bytes(b"")

    def replace():
        with set_aside(target) as aside:
            target.rename(aside)
            if new_came:
                target.mkdir()
            os.kill(os.getpid(), 9)

    killed_while(replace)
    assert target.exists() is new_came
    (note,) = remove_leftovers(tmp_path)
    assert "merged" in note
    assert [path.name for path in tmp_path.iterdir()] == ["merged"]
    assert (target / "old").exists() is not new_came


def test_a_failed_replacement_puts_back_what_was_there(tmp_path):
    (tmp_path / "merged").write_bytes(b"old")
    with set_aside(tmp_path / "merged") as aside:
        (tmp_path / "merged").rename(aside)
    assert (tmp_path / "merged").read_bytes() == b"old"
