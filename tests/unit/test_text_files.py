"""Small files are read within bounds; what is wrong is said in words."""

import pytest

from trainer_core.errors import InputError
from trainer_core.filesystem.text_files import DEEPEST, parse_json, read_text


def refuse(reason):
    return InputError(reason, "a file", "Fix it.")


def nested(levels):
    return "[" * levels + "]" * levels


@pytest.mark.parametrize("size", [9, 10, 11])
def test_the_bound_is_the_last_size_that_is_read(tmp_path, size):
    path = tmp_path / "x.txt"
    path.write_bytes(b"x" * size)
    if size <= 10:
        assert len(read_text(path, refuse, 10)) == size
        return
    with pytest.raises(InputError, match="11 bytes, larger than the 10"):
        read_text(path, refuse, 10)


def test_what_is_no_file_is_named(tmp_path):
    for path, words in {
        tmp_path: "folder",
        tmp_path / "none": "no file",
        tmp_path / "nul\0": "null",
        tmp_path / ("x" * 300): "too long",
    }.items():
        with pytest.raises(InputError, match=words):
            read_text(path, refuse)


def test_depth_is_the_same_wherever_it_is_asked():
    assert parse_json(nested(DEEPEST + 1))
    for levels in (DEEPEST + 2, 900, 100_000):
        with pytest.raises(ValueError, match="deep"):
            parse_json(nested(levels))
