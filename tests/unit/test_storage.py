"""Files that are whole or absent, under names that are free or to be replaced."""

import os
from pathlib import Path

import pytest

from trainer_core.errors import InputError, StorageError
from trainer_core.filesystem import storage, temporary
from trainer_core.filesystem.storage import atomic_write, require_folder, storage_error, unlink
from trainer_core.filesystem.temporary import PREFIX
from trainer_core.filesystem.text_files import read_text


def test_a_file_that_is_not_whole_has_an_ending_that_no_program_lists(tmp_path):
    """What a crash leaves behind would else be offered among the adapters."""
    seen = []

    def write(target: Path) -> None:
        target.write_bytes(b"whole")
        seen.append(target.name)

    atomic_write(tmp_path / "a.safetensors", write)
    assert seen[0].startswith(PREFIX)
    assert not seen[0].endswith(".safetensors")
    assert [path.name for path in tmp_path.iterdir()] == ["a.safetensors"]


def test_a_name_that_is_taken_is_not_taken_away(tmp_path):
    path = tmp_path / "a"

    def mine(target: Path) -> None:
        target.write_bytes(b"mine")

    def write(target: Path) -> None:
        mine(target)
        path.write_bytes(b"theirs")

    with pytest.raises(InputError, match="in the meantime"):
        atomic_write(path, write, replace=False)
    assert path.read_bytes() == b"theirs"
    assert [each.name for each in tmp_path.iterdir()] == ["a"]
    atomic_write(path, mine)
    assert path.read_bytes() == b"mine"
    atomic_write(tmp_path / "b", mine, replace=False)
    assert (tmp_path / "b").read_bytes() == b"mine"


def test_a_file_gets_another_in_its_place_and_is_not_written_into(tmp_path):
    """A crash while it was written into would leave neither the old one nor the new one."""
    path, same = tmp_path / "a", tmp_path / "b"
    path.write_bytes(b"old")
    same.hardlink_to(path)
    atomic_write(path, lambda target: target.write_bytes(b"new"))
    assert (path.read_bytes(), same.read_bytes()) == (b"new", b"old")


def refuse(path, *_, **__):
    raise PermissionError(13, "somebody has it open", str(path))


def test_a_folder_is_tried_where_the_system_does_not_say_who_may_write(tmp_path, monkeypatch):
    """The root of a drive of Windows takes folders, and no files."""
    monkeypatch.setattr(storage, "_IS_WINDOWS", True)
    for folder, tried in ((tmp_path, "touch"), (tmp_path / "new", "mkdir")):
        require_folder(folder)
        assert not list(tmp_path.iterdir())
        with monkeypatch.context() as patch:
            patch.setattr(Path, tried, refuse)
            with pytest.raises(StorageError, match="takes no files"):
                require_folder(folder)


def test_a_file_that_is_open_for_a_moment_is_waited_for(tmp_path, monkeypatch):
    """Windows refuses what a virus scanner looks at."""
    path = tmp_path / "a"
    path.write_text("a")
    monkeypatch.setattr(temporary, "_PAUSES", (0.0,))
    acts = {"open": lambda: read_text(path, InputError), "unlink": lambda: unlink(path)}
    for name, act in {"replace": lambda: storage.write_text(path, "b"), **acts}.items():
        tries = iter([refuse, getattr(os, name)])
        monkeypatch.setattr(os, name, lambda *a, tries=tries, **k: next(tries)(*a, **k))
        act()
    assert not path.exists()


def test_a_path_that_windows_takes_for_too_long_is_told_by_its_length(tmp_path, monkeypatch):
    monkeypatch.setattr(storage, "_IS_WINDOWS", True)
    error = FileNotFoundError(2, "No such file", f"{tmp_path}/{'x' * 240}")
    assert "LongPathsEnabled" in storage_error(tmp_path / "x", error).remedy
