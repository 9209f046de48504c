"""Tensors in a file: whole and separate, however they lie in memory."""

from __future__ import annotations

import errno
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from trainer_core.errors import InputError, StorageError
from trainer_core.filesystem.storage import atomic_write, errno_of_text, save_tensors
from trainer_core.filesystem.temporary import PREFIX


def written(path, tensors):
    save_tensors(path, tensors, {"made": "here"})
    return load_file(str(path))


def assert_same(found, expected):
    assert set(found) == set(expected)
    for name, tensor in expected.items():
        assert found[name].dtype == tensor.dtype
        assert torch.equal(found[name], tensor), name


def shared_memory():
    """Tensors that lie in each other's memory in every way."""
    whole = torch.arange(24, dtype=torch.float32).reshape(4, 6)
    return {
        "whole": whole,
        "same": whole,
        "view": whole.view(6, 4),
        "half": whole[:2],
        "other_half": whole[2:],
        "detached": torch.nn.Parameter(whole).detach(),
    }


def test_the_format_itself_refuses_shared_memory(tmp_path):
    """Without this the next test would prove nothing."""
    with pytest.raises(RuntimeError, match="share memory"):
        save_file(shared_memory(), str(tmp_path / "a.safetensors"))


def test_tensors_that_share_memory_are_written_each_whole(tmp_path):
    tensors = shared_memory()
    assert_same(written(tmp_path / "a.safetensors", tensors), tensors)
    assert tensors["whole"].data_ptr() == tensors["same"].data_ptr(), "the caller's were changed"


def test_tensors_that_are_not_contiguous_are_written_as_they_read(tmp_path):
    base = torch.arange(24, dtype=torch.bfloat16).reshape(4, 6)
    tensors = {
        "transposed": base.T,
        "column": base[:, 1],
        "every_other": base[::2, ::3],
        "expanded": torch.ones(1, dtype=torch.int64).expand(5),
        "expanded_rows": base[:1].expand(3, 6),
    }
    assert not any(tensor.is_contiguous() for tensor in tensors.values())
    assert_same(written(tmp_path / "a.safetensors", tensors), tensors)


def test_a_view_takes_only_its_own_room(tmp_path):
    large = torch.zeros(1 << 18)
    save_tensors(tmp_path / "a.safetensors", {"view": large[5:7]})
    assert (tmp_path / "a.safetensors").stat().st_size < 1000


@pytest.mark.parametrize("count", [1, 3])
def test_empty_tensors_and_scalars_are_written(tmp_path, count):
    tensors = {f"empty{i}": torch.zeros(0, 4) for i in range(count)}
    tensors |= {f"scalar{i}": torch.tensor(float(i)) for i in range(count)}
    assert_same(written(tmp_path / "a.safetensors", tensors), tensors)


def test_gradients_are_left_behind(tmp_path):
    weight = torch.nn.Parameter(torch.ones(2, 2))
    tied = {"a": weight, "b": weight, "c": weight * 2}
    assert_same(written(tmp_path / "a.safetensors", tied), {n: t.detach() for n, t in tied.items()})


@pytest.mark.parametrize(
    ("platform", "text", "expected"),
    [
        ("posix", "I/O error: No space left on device (os error 28)", errno.ENOSPC),
        ("posix", "Permission denied (os error 13)", errno.EACCES),
        ("posix", "Read-only file system (OS Error 30)", errno.EROFS),
        ("posix", "Disk quota exceeded (os error 122)", errno.EDQUOT),
        ("posix", "an error of another kind", errno.EIO),
        ("nt", "There is not enough space on the disk. (os error 112)", errno.ENOSPC),
        ("nt", "The disk is full. (os error 39)", errno.ENOSPC),
        ("nt", "Access is denied. (os error 5)", errno.EACCES),
        ("nt", "It is being used by another process. (os error 32)", errno.EACCES),
        # A number that begins like another, or that means something else on Windows.
        ("posix", "(os error 282)", 282),
        ("posix", "(os error 130)", 130),
        ("nt", "Out of paper (os error 28)", errno.EIO),
        ("nt", "(os error 1123)", errno.EIO),
    ],
)
def test_the_systems_number_is_read_exactly(platform, text, expected):
    assert errno_of_text(text, platform) == expected


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


def test_a_folder_that_is_a_file_is_told_as_it_is(tmp_path):
    (tmp_path / "a").write_bytes(b"")
    with pytest.raises(StorageError):
        atomic_write(tmp_path / "a" / "b", lambda target: None, replace=False)
